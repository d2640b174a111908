"""Finds, reads and checks the files of a corpus: raw parallel text."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.data.dataset import SPLITS, check_pair_name
from lingvo_moe.data.tmx import read_tmx
from lingvo_moe.system.lines import COMPRESSED, check_utf8, read_lines

# (pair such as "de-en", source, target), one by one.
Examples = Iterable[tuple[str, str, str]]

_LANGUAGE = re.compile(r"[^\W_][\w@]{0,31}")
_FILE_NAMES = "SRC-TGT.SRC and SRC-TGT.TGT, SRC-TGT.tsv or SRC-TGT.tmx, plain, .gz or .zst"
_WHOLE = ("tsv", "tmx")  # files with both sides
_LINES_AT_ONCE = 20_000
# Other common names of the splits; a directory with such a name is an error.
_OTHER_NAMES = {
    "train": ("training",),
    "dev": ("val", "valid", "validation", "devel", "development", "tune", "tuning"),
    "test": ("testing", "devtest"),
}


class SentencePair(NamedTuple):
    """One line of a corpus."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class CorpusPair:
    """The files of one language pair."""

    name: str  # "de-en"
    # source, target: its languages
    source: str
    target: str
    files: dict[str, tuple[Path, ...]]  # split -> (source file, target file), or (TSV or TMX file,)
    # the splits that are read from files of the reverse pair: the target comes first
    turned: frozenset[str] = frozenset()

    def read(self, split: str) -> Iterator[SentencePair]:
        """Reads the lines of a split, stripped, one at a time; none without files for the split.
        Raises ValueError: the two files have different numbers of lines; text is not UTF-8; a
        TSV line does not have exactly one tab; a TMX file is not valid."""
        if split not in self.files:
            return iter(())
        turned, files = split in self.turned, self.files[split]
        if len(files) == 2:
            pairs = _aligned_pairs(*files)
        elif _plain_name(files[0]).endswith(".tsv"):
            pairs = _tsv_pairs(files[0])
        else:
            languages = (self.source, self.target)[:: -1 if turned else 1]
            pairs = itertools.starmap(SentencePair, read_tmx(files[0], *languages))
        return (SentencePair(*reversed(pair)) for pair in pairs) if turned else pairs

    def reverse(self) -> "CorpusPair":
        """The same text in the other direction."""
        name = f"{self.target}-{self.source}"
        turned = frozenset(self.files) - self.turned
        return CorpusPair(name, self.target, self.source, self.files, turned)

    def completed(self, other: "CorpusPair") -> "CorpusPair":
        """This pair; a split that it lacks is taken from another pair of the same languages."""
        files = {split: other.files[split] for split in other.files if split not in self.files}
        turned = self.turned | (other.turned & files.keys())
        return dataclasses.replace(self, files=self.files | files, turned=turned)


def find_pairs(
    corpus: Path, report: Callable[[str], None] = lambda line: None, needs_train: bool = True
) -> list[CorpusPair]:
    """The language pairs of a corpus directory, in order of name.

    The layout is `SPLIT/SRC-TGT.SRC` and `SPLIT/SRC-TGT.TGT`, or `SPLIT/SRC-TGT.tsv` with a tab
    between the sides, or `SPLIT/SRC-TGT.tmx` (`data.tmx`); each may be compressed (`.gz`, `.zst`).
    SPLIT is train, dev or test. Names that begin with a dot are ignored; `report` takes a warning
    for each other name that is not read and does not look like data.

    Raises ValueError: no text in train where it is needed, no files, a pair with one side or with
    two sources in a split, or a name that looks like data and is not read, such as `valid`,
    `de-en.txt`, `zh-TW-en.tsv` or `de-en.de.bz2`; OSError: a directory cannot be read.
    """
    _check_splits(corpus, report)
    files: dict[str, dict[str, tuple[Path, ...]]] = {}
    for split in SPLITS:
        for name, paths in _pair_files(corpus / split, report).items():
            files.setdefault(name, {})[split] = paths
    if needs_train and not any("train" in splits for splits in files.values()):
        raise ValueError(
            f"{corpus}/train has no text; it must hold files such as de-en.de and de-en.en."
        )
    if not files:
        raise ValueError(f"{corpus} is empty; it must hold files such as test/de-en.de, de-en.en.")
    return [
        CorpusPair(name, source, target, files[name])
        for name in sorted(files)
        for source, target in [name.split("-")]
    ]


def _visible(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _check_splits(corpus, report):
    if not corpus.is_dir():
        raise ValueError(f"There is no directory {corpus}; give the corpus as a directory.")
    meant = {other: split for split, others in _OTHER_NAMES.items() for other in (split, *others)}
    for path in _visible(corpus):
        if path.name in SPLITS:
            if not path.is_dir():
                raise ValueError(f"{path} must be a directory, the files of one split.")
        elif path.name.lower() in meant:
            raise ValueError(
                f"{path} is not read: rename it to {meant[path.name.lower()]!r} or move it away."
            )
        else:
            report(f"warning: {path} is not read; the splits are {', '.join(SPLITS)}.")


def _pair_files(directory, report) -> dict[str, tuple[Path, ...]]:
    """Pair -> its files in the directory of a split."""
    found: dict[str, dict[str, Path]] = {}
    for path in _visible(directory) if directory.is_dir() else []:
        name, _, side = _plain_name(path).rpartition(".")
        if _is_pair(name) and side in (*name.split("-"), *_WHOLE):
            check_pair_name(name)
            if not path.is_file():
                raise ValueError(f"{path} is no file, or a link to nothing; put the text there.")
            path.open("rb").close()  # whether it can be read
            sides = found.setdefault(name, {})
            for other, there in sides.items():
                if side == other or {side, other} & {*_WHOLE}:
                    raise ValueError(
                        f"{there} and {path} are two sources of the same text; keep one of them."
                    )
            sides[side] = path
        elif "-" in path.name:
            raise ValueError(
                f"{path} looks like data but is not read: files are named {_FILE_NAMES}. A "
                f"language code is letters and digits, with _ or @ between them and no hyphen: "
                f"zh_TW, not zh-TW. Rename it, unpack it or move it away."
            )
        else:
            report(f"warning: {path} is not read; files are named {_FILE_NAMES}.")
    return {name: _both_sides(name, sides) for name, sides in found.items()}


def _plain_name(path: Path) -> str:
    return path.stem if path.suffix in COMPRESSED else path.name


def _is_pair(name: str) -> bool:
    languages = name.split("-")
    return len(languages) == 2 and all(map(_LANGUAGE.fullmatch, languages))


def _both_sides(name, sides):
    for kind in _WHOLE:
        if kind in sides:
            return (sides[kind],)
    there = next(iter(sides.values()))
    source, target = name.split("-")
    if source == target:
        raise ValueError(
            f"{there} would be both sides of {name}. For text in one language write {name}.tsv."
        )
    for side in (source, target):
        if side not in sides:
            raise ValueError(
                f"{there.parent} has {there.name} but no {name}.{side}; a pair needs both sides."
            )
    return sides[source], sides[target]


def _aligned_pairs(source: Path, target: Path) -> Iterator[SentencePair]:
    sides = read_lines(source), read_lines(target)
    for before, lines in enumerate(itertools.zip_longest(*sides)):
        if None in lines:
            totals = [before + (line is not None) for line in lines]
            totals = [n + sum(1 for _ in side) for n, side in zip(totals, sides, strict=True)]
            raise ValueError(
                f"{source} has {totals[0]} lines and {target} has {totals[1]}; lines must match."
            )
        yield SentencePair(lines[0].strip(), lines[1].strip())


def _tsv_pairs(path: Path) -> Iterator[SentencePair]:
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise ValueError(
                f"{path}, line {number}: {len(fields) - 1} tabs; a line is SOURCE, one tab, TARGET."
            )
        yield SentencePair(fields[0].strip(), fields[1].strip())


def write_corpus(directory: Path, splits: Mapping[str, Examples]) -> None:
    """Writes a corpus that `find_pairs` reads: split -> examples, read once, in any order of pairs.
    Raises ValueError: an unknown split, one without examples, an example that is not three strings,
    a pair that is not SRC-TGT, or a text with a line break."""
    for split, examples in splits.items():
        if split not in SPLITS:
            raise ValueError(f"There is no split {split!r}; the splits are {', '.join(SPLITS)}.")
        (directory / split).mkdir(parents=True)
        lines: dict[Path, list[str]] = collections.defaultdict(list)
        number = 0
        for number, example in enumerate(examples, start=1):
            pair, *texts = _checked(example, f"Example {number} of {split}")
            source, target = pair.split("-")
            if source == target:  # a pair of one language has both in one file
                lines[directory / split / f"{pair}.tsv"].append("\t".join(texts) + "\n")
            else:
                for side, text in zip((source, target), texts, strict=True):
                    lines[directory / split / f"{pair}.{side}"].append(f"{text}\n")
            if number % _LINES_AT_ONCE == 0:
                _append(lines)
        _append(lines)
        if not number:
            raise ValueError(f"There are no examples of {split}; give some, or leave it out.")


def _append(lines):
    """Appends lines to their files, one file after another: there may be thousands of files."""
    for path, texts in lines.items():
        with path.open("a", encoding="utf-8", newline="") as file:
            file.writelines(texts)
    lines.clear()


def _checked(example, where):
    if len(example) != 3 or not all(isinstance(one, str) for one in example):
        raise ValueError(f"{where} must be (pair, source, target), three strings; got {example!r}.")
    pair, *texts = example
    if not _is_pair(pair):
        raise ValueError(f"{where}: pair {pair!r} does not have the form SRC-TGT, such as de-en.")
    tab = "\t" if len(set(pair.split("-"))) == 1 else ""  # it parts the sides of one language
    for text in texts:
        if bad := re.search(f"[\n\0{tab}]", text):
            raise ValueError(f"{where} has {bad[0]!r} in {text!r}; give one sentence a text.")
        check_utf8(text, where)
    return example
