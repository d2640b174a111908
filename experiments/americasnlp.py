"""Makes a corpus of AmericasNLP 2021 with more train lines.

python -m experiments.americasnlp CORPUS OUTPUT [--dev=DIR] [--verses=SPANISH,bzd=FILE]

CORPUS is in the layout of lingvo-moe-prepare, plain files. The organisers allow dev lines for
training (track 1): with --dev most of them are the train lines of a second corpus in DIR, and
OUTPUT's dev keeps about a ninth of the Spanish sentences, the same ones for all languages.
Files with verses, such as those of eBible, have a verse in each line, the same one in all files; a
line may be empty.
"""

import argparse
import hashlib
import lzma
import shutil
from collections.abc import Sequence
from pathlib import Path

_HELD_OUT = 9  # about one of this many Spanish sentences stays in dev


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--dev", type=Path, help="a second corpus, with dev lines for training")
    parser.add_argument("--verses", default="", help="file with Spanish, then LANGUAGE=FILE, …")
    args = parser.parse_args()
    shutil.copytree(args.corpus, args.output, copy_function=shutil.copyfile)
    if args.dev:
        (args.dev / "train").mkdir(parents=True)
        move_dev(args.output, args.dev)
    spanish, *others = args.verses.split(",")
    for text in others:
        language, path = text.split("=", 1)
        add_verses(args.output, language, read_lines(Path(spanish)), read_lines(Path(path)))


def move_dev(corpus: Path, other: Path) -> None:
    """Moves the dev lines of most Spanish sentences to the train lines of the other corpus."""
    for spanish in sorted((corpus / "dev").glob("*.es")):
        moved = [_is_moved(line) for line in read_lines(spanish)]
        for dev in (spanish, spanish.with_suffix("." + spanish.stem.split("-")[1])):
            lines = list(zip(read_lines(dev), moved, strict=True))
            _write(other / "train" / dev.name, [line for line, moves in lines if moves])
            _write(dev, [line for line, moves in lines if not moves])


def _is_moved(sentence):
    return int(hashlib.sha1(sentence.encode()).hexdigest(), 16) % _HELD_OUT > 0


def add_verses(
    corpus: Path, language: str, spanish: Sequence[str], translated: Sequence[str]
) -> None:
    """Appends the verses that both have to the train lines of es-LANGUAGE."""
    pairs = [(a, b) for a, b in zip(spanish, translated, strict=True) if a and b]
    for i, side in enumerate(("es", language)):
        path = corpus / "train" / f"es-{language}.{side}"
        _write(path, [*read_lines(path), *(pair[i] for pair in pairs)])


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, which may be compressed with xz."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
