"""Speed and memory of preparing generated corpora of several sizes.

python benchmarks/prepare.py 1000000 2000000

The numbers are sentence pairs. Each corpus has three language pairs. Texts are random words, drawn
by a power law; 5 % of the lines are repeated. Memory is the peak of the first process, and the
largest peak of the others.
"""

import argparse
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.reporting.table import Table

_SHARES = {"aa-en": 0.7, "bb-en": 0.2, "cc-en": 0.1}
_WORDS = 50_000
_BATCH = 10_000


def write_corpus(directory: Path, pairs: int) -> None:
    """Writes a corpus of this number of training pairs, and 1,000 dev pairs per language pair."""
    rng = np.random.default_rng(1)
    words = np.array(
        ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 10, _WORDS)]
    )
    for name, share in _SHARES.items():
        for split, lines in (("train", round(pairs * share)), ("dev", 1000)):
            (directory / split).mkdir(parents=True, exist_ok=True)
            for side in name.split("-"):
                with (directory / split / f"{name}.{side}").open("w") as file:
                    for start in range(0, lines, _BATCH):
                        file.writelines(_lines(rng, words, min(_BATCH, lines - start)))


def _lines(rng, words, count):
    lengths = rng.integers(5, 25, count)
    drawn = words[(_WORDS * rng.random(lengths.sum()) ** 3).astype(int)]
    ends = np.cumsum(lengths)
    lines = [" ".join(drawn[end - n : end]) for n, end in zip(lengths, ends, strict=True)]
    for i in range(19, count, 20):
        lines[i] = lines[i - 10]  # on both sides, so the sentence pair is repeated
    return (f"{line}\n" for line in lines)


def measure(corpus: Path, output: Path, results) -> None:
    """Puts seconds, CPU seconds, and peak bytes of this process and of the helpers in `results`."""
    start = time.monotonic()
    prepare(corpus, output, PrepareParams(vocab_sentences=50_000), report=print)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    memory = [1024 * who.ru_maxrss for who in usage]
    cpu = sum(who.ru_utime + who.ru_stime for who in usage)
    results.put((time.monotonic() - start, cpu, *memory))


def main() -> None:
    """Prints a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=int, nargs="+")
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for pairs in parser.parse_args().pairs:
            corpus, output = Path(directory) / "corpus", Path(directory) / "data"
            write_corpus(corpus, pairs)
            results = multiprocessing.get_context("spawn").Queue()
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(corpus, output, results)
            )
            process.start()
            seconds, cpu, *memory = results.get()
            process.join()
            size = sum(path.stat().st_size for path in corpus.rglob("*") if path.is_file())
            numbers = pairs, size / 1e6, seconds, cpu, pairs / seconds, *(m / 1e6 for m in memory)
            rows.append([f"{number:,.0f}" for number in numbers])
            for path in (corpus, output):
                shutil.rmtree(path)
    columns = ("pairs", "text MB", "seconds", "CPU s", "pairs/s", "MB first process", "MB helper")
    print(f"{os.cpu_count()} cores")
    print(Table(columns, rows).to_text())


if __name__ == "__main__":
    main()
