"""Makes the corpora of the study of experts from verses of the Bible in 200 languages.

python -m experiments.verses EBIBLE OUTPUT

EBIBLE is a checkout of https://github.com/BibleNLP/ebible: a line of metadata/vref.txt names the
verse that the same line of each file of corpus/ has. results/verses.csv lists the files. OUTPUT
gets a directory for each entry of CORPORA, in the layout of lingvo-moe-prepare.

Which split a verse is in depends on its name alone. So no verse of dev or test is in the train
lines of any language.
"""

import argparse
import csv
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.data.corpora import write_corpus
from lingvo_moe.system.files import new_directory

ENGLISH = "eng-engwebp.txt"  # the World English Bible
LIST = Path(__file__).parent / "results" / "verses.csv"  # most verses first
_RANGE = "<range>"  # the verse is part of that of the line before


class Verses(NamedTuple):
    """A corpus of English and other languages.

    Attributes:
        step: takes every step-th language of LIST.
        exponent: the language of rank r keeps verses / r**exponent train lines.
        dev: number of lines of a language, at most.
        test: as dev.
        from_english: the direction.
        evenly: whether dev and test are taken at even distances. If not, they are the first.
    """

    step: int
    exponent: float
    dev: int
    test: int
    from_english: bool = True
    evenly: bool = True


CORPORA = {
    "english_200": Verses(1, 0.0, 30, 40),
    "english_40": Verses(5, 0.7, 40, 100, evenly=False),
    "into_english_200": Verses(1, 0.0, 30, 40, from_english=False),
}


def main() -> None:
    """Writes the corpora."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ebible", type=Path, help="a checkout of eBible")
    parser.add_argument("output", type=Path, help="a new directory")
    args = parser.parse_args()
    with LIST.open(encoding="utf-8", newline="") as file:
        languages = [(row["language"], row["file"]) for row in csv.DictReader(file)]
    with new_directory(args.output, "verses.py") as directory:
        for name, corpus in CORPORA.items():
            splits = make(args.ebible, languages, corpus)
            write_corpus(directory / name, splits)
            print(name, {split: f"{len(examples):,} lines" for split, examples in splits.items()})


def make(
    ebible: Path, languages: Sequence[tuple[str, str]], corpus: Verses
) -> dict[str, list[tuple[str, str, str]]]:
    """Split -> examples of all languages: (pair, source, target).

    Args:
        ebible: the checkout.
        languages: (code, file in its directory corpus), that with most verses first.
        corpus: what to make.
    """
    names = (ebible / "metadata" / "vref.txt").read_text(encoding="utf-8").splitlines()
    english = list(_verses(ebible / "corpus" / ENGLISH))
    found: dict[str, list[tuple[str, str, str]]] = {"train": [], "dev": [], "test": []}
    for rank, (code, file) in enumerate(languages[:: corpus.step], 1):
        splits: dict[str, list[tuple[str, str]]] = {split: [] for split in found}
        for name, *both in zip(names, english, _verses(ebible / "corpus" / file), strict=True):
            if all(both):
                splits[_split(name)].append((both[0], both[1]))
        train = sorted(splits["train"], key=lambda one: hashlib.sha1(one[0].encode()).digest())
        splits["train"] = train[: max(1, round(len(train) / rank**corpus.exponent))]
        for split, most in (("dev", corpus.dev), ("test", corpus.test)):
            lines = splits[split]
            step = max(len(lines), most) if corpus.evenly else most
            splits[split] = [lines[i * step // most] for i in range(min(most, len(lines)))]
        for split, lines in splits.items():
            pair = f"en-{code}" if corpus.from_english else f"{code}-en"
            found[split] += [(pair, *(one if corpus.from_english else one[::-1])) for one in lines]
    return found


def _split(verse):
    """2 % of the verses are dev, 3 % test."""
    number = int(hashlib.sha1(verse.encode()).hexdigest(), 16) % 1000
    return "dev" if number < 20 else "test" if number < 50 else "train"


def _verses(path) -> Iterator[str]:
    """The text of each verse; "" if there is none, or if it is one with the next or previous."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        yield "" if _RANGE in (line, following) else line


if __name__ == "__main__":
    main()
