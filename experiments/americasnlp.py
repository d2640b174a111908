"""Makes a corpus of AmericasNLP 2021 with more train lines.

python -m experiments.americasnlp CORPUS OUTPUT [--dev_repeats=N] [--verses=SPANISH --of=bzd=FILE]

CORPUS is in the layout of lingvo-moe-prepare. With --dev_repeats, eight of nine dev lines, which
the organisers allow for training (track 1), are N times in train; OUTPUT's dev has the ninth. Files
with verses, such as those of eBible, have a verse in each line, the same one in all files; a line
may be empty.
"""

import argparse
import lzma
import shutil
from collections.abc import Sequence
from pathlib import Path

HELD_OUT = 9  # of so many dev lines one stays in dev


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--dev_repeats", type=int, default=0)
    parser.add_argument("--verses", type=Path, help="Spanish")
    parser.add_argument("--of", action="append", default=[], help="LANGUAGE=FILE of verses")
    args = parser.parse_args()
    shutil.copytree(args.corpus, args.output, copy_function=shutil.copyfile)
    if args.dev_repeats:
        train_on_dev(args.output, args.dev_repeats)
    for text in args.of:
        language, path = text.split("=", 1)
        add_verses(args.output, language, read_lines(args.verses), read_lines(Path(path)))


def train_on_dev(corpus: Path, repeats: int) -> None:
    """Moves most dev lines to train, where each is so many times."""
    for dev in sorted((corpus / "dev").iterdir()):
        lines = read_lines(dev)
        moved = [line for i, line in enumerate(lines) if i % HELD_OUT]
        _append(corpus / "train" / dev.name, moved * repeats)
        _write(dev, lines[::HELD_OUT])


def add_verses(
    corpus: Path, language: str, spanish: Sequence[str], translated: Sequence[str]
) -> None:
    """Appends the verses that both have to the train lines of es-LANGUAGE."""
    pairs = [(a, b) for a, b in zip(spanish, translated, strict=True) if a and b]
    for side, lines in zip(("es", language), zip(*pairs, strict=True), strict=True):
        _append(corpus / "train" / f"es-{language}.{side}", lines)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, which may be compressed with xz."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def _append(path, lines):
    _write(path, [*read_lines(path), *lines])


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
