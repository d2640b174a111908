"""Reading raw parallel text, and what is wrong with it."""

import dataclasses
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lingvo_moe.data.dataset import SPLITS


class SentencePair(NamedTuple):
    """One line of a corpus."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class CorpusPair:
    """The files of one language pair.

    Attributes:
        name: "de-en".
        source, target: its languages.
        files: split -> (source file, target file), or (TSV file,).
    """

    name: str
    source: str
    target: str
    files: dict[str, tuple[Path, ...]]

    def read(self, split: str) -> list[SentencePair]:
        """The lines of a split, stripped; empty where the pair has no such split.

        Raises:
            ValueError: files of uneven length, text that is not UTF-8, a TSV line without exactly
                one tab.
        """
        files = self.files.get(split, ())
        if not files:
            return []
        if len(files) == 1:
            return list(_tsv_pairs(files[0]))
        sources, targets = ([line.strip() for line in _lines(path)] for path in files)
        if len(sources) != len(targets):
            raise ValueError(
                f"{files[0]} has {len(sources)} lines and {files[1]} has {len(targets)}; line n of "
                f"one must be line n of the other. Find the line where they part."
            )
        return [SentencePair(s, t) for s, t in zip(sources, targets, strict=True)]


def find_pairs(corpus: Path) -> list[CorpusPair]:
    """The language pairs of a corpus directory, in order of name.

    The layout is `SPLIT/SRC-TGT.SRC` and `SPLIT/SRC-TGT.TGT`, or `SPLIT/SRC-TGT.tsv` with a tab
    between the sides; each may be gzipped (`.gz`). SPLIT is train, dev or test.

    Raises:
        ValueError: no train split, no files in it, a file without its other half, or a language
            code with a hyphen.
    """
    if not (corpus / "train").is_dir():
        raise ValueError(
            f"{corpus} has no directory 'train'; a corpus is SPLIT/SRC-TGT.SRC and "
            f"SPLIT/SRC-TGT.TGT with SPLIT in {', '.join(SPLITS)}."
        )
    files: dict[str, dict[str, tuple[Path, ...]]] = {}
    for split in SPLITS:
        for name, paths in _pair_files(corpus / split).items():
            files.setdefault(name, {})[split] = paths
    if not any("train" in splits for splits in files.values()):
        raise ValueError(f"{corpus}/train is empty; it must hold files such as de-en.de, de-en.en.")
    return [CorpusPair(name, *name.split("-"), files[name]) for name in sorted(files)]


def _pair_files(directory: Path) -> dict[str, tuple[Path, ...]]:
    by_name: dict[str, dict[str, Path]] = {}
    for path in sorted(directory.glob("*")) if directory.is_dir() else []:
        name, _, extension = path.name.removesuffix(".gz").rpartition(".")
        if name.count("-") == 1 and extension in (*name.split("-"), "tsv"):
            by_name.setdefault(name, {})[extension] = path
        elif name.startswith(f"{extension}-") or name.endswith(f"-{extension}"):
            raise ValueError(
                f"{path}: pair {name!r} does not read as SRC-TGT; a language code has no hyphen. "
                f"Rename the file, for example zh-TW to zh_TW."
            )
    return {name: _both_sides(directory, name, found) for name, found in by_name.items()}


def _both_sides(directory, name, found):
    if "tsv" in found:
        return (found["tsv"],)
    sides = name.split("-")
    for side in sides:
        if side not in found:
            raise ValueError(
                f"{directory} has {next(iter(found.values())).name} but no {name}.{side}; a pair "
                f"needs both sides."
            )
    return tuple(found[side] for side in sides)


def _lines(path: Path) -> Iterator[str]:
    # Split at b"\n" alone: Unicode's other line ends occur inside sentences.
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield _decode(line, path, number)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}); fetch it again.") from error


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). "
            f"Convert the file, for example with iconv, or remove the line on both sides."
        ) from error


def _tsv_pairs(path: Path) -> Iterator[SentencePair]:
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise ValueError(
                f"{path}, line {number}: {len(fields) - 1} tabs; a line is SOURCE, one tab, TARGET."
            )
        yield SentencePair(fields[0].strip(), fields[1].strip())


class CleanPair(NamedTuple):
    """The lines that are kept by split, and counts of what was found, by kind."""

    lines: dict[str, list[SentencePair]]
    checks: dict[str, int]


def clean(splits: dict[str, list[SentencePair]]) -> CleanPair:
    """Leaves out what would spoil training or its evaluation, and counts it.

    Left out: pairs with an empty side; from train, repeated pairs and pairs whose source occurs in
    dev or test. Counted only: held-out lines whose target occurs in train, as it may rightly where
    many languages translate one text.

    Args:
        splits: split -> lines of one language pair.

    Returns:
        The rest, and counts `empty`, `duplicates`, `held_out_in_train`, `targets_in_train`.
    """
    filled = {s: [p for p in lines if p.source and p.target] for s, lines in splits.items()}
    train = filled.get("train", [])
    held_out = [pair for s, lines in filled.items() if s != "train" for pair in lines]
    held_out_sources = {pair.source for pair in held_out}
    unique = list(dict.fromkeys(train))
    kept = [pair for pair in unique if pair.source not in held_out_sources]
    train_targets = {pair.target for pair in kept}
    checks = {
        "empty": _count(splits) - _count(filled),
        "duplicates": len(train) - len(unique),
        "held_out_in_train": len(unique) - len(kept),
        "targets_in_train": sum(pair.target in train_targets for pair in held_out),
    }
    return CleanPair({**filled, "train": kept}, checks)


def _count(splits: dict[str, Iterable[SentencePair]]) -> int:
    return sum(len(lines) for lines in splits.values())
