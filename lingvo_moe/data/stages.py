"""The stages of preparation, in pieces on disk, so that memory does not grow with the corpus.

    text      the lines of each split, in blocks
    checks    for each block: the rule that drops each line; in train also the hashes of the lines
    repeats   for each pair and range of hashes: the line numbers of repeated lines
    models    the vocabularies
    ids       for each block: the kept lines as ids
    shards    the examples

A stage begins when the one before is finished. The number of ranges of hashes depends on the memory
of a process; no other piece depends on that or on the number of processes.
"""

import collections
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.core.files import new_file, write_whole
from lingvo_moe.core.pieces import take
from lingvo_moe.data.blocks import Block, Texts, cut
from lingvo_moe.data.cleaning.base import Empty
from lingvo_moe.data.corpora import CorpusPair, SentencePair
from lingvo_moe.data.dataset import SIDES, SPLITS, Example, shard_bounds, write_shard
from lingvo_moe.data.encoded import count_changed, encode_lines
from lingvo_moe.data.extension import extend_vocabulary
from lingvo_moe.data.language_tags import OnBothSides, OnSource
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.repeats import repeated_lines, sorted_keys
from lingvo_moe.data.vocabulary import UNK, Vocabulary, train_vocabulary

KEPT, REPEATED, HELD_OUT = 0, 254, 255  # verdicts of lines; the others are numbers of rules
STAGES = ("text", "checks", "keys", "repeats", "models", "ids", "shards")  # directories
VOCABULARIES = "training vocabularies"
_BYTES_PER_KEY = 80  # memory for sorting


class Piece(NamedTuple):
    """A part of a stage.

    Attributes:
        path: the file that appears when it is finished.
        make: makes it; takes a function to call with numbers of finished lines.
        lines: number of lines, for progress; 0 if `make` counts them.
    """

    path: Path
    make: Callable[[Callable[[int], None]], None]
    lines: int = 0


class Stage(NamedTuple):
    """A stage.

    Attributes:
        name: for progress.
        pieces: lists them; the stages before must be finished.
    """

    name: str
    pieces: Callable[[], Iterable[Piece]]


def run_stage(stage: Stage, progress: Callable[[int], None]) -> None:
    """Makes the pieces that no other process makes; at the end all are finished."""
    for piece in stage.pieces():
        take(piece.path, functools.partial(piece.make, progress))
        if piece.lines:
            progress(piece.lines)
    for piece in stage.pieces():  # again, because another process may have died
        take(piece.path, functools.partial(piece.make, lambda count: None), wait=True)


@dataclasses.dataclass(frozen=True)
class Work:
    """All stages of a preparation.

    Attributes:
        directory: of the pieces.
        pairs: of the dataset, in order.
        params: the params.
        memory: bytes for sorting in a process.
    """

    directory: Path
    pairs: tuple[CorpusPair, ...]
    params: PrepareParams
    memory: int

    def stages(self) -> list[Stage]:
        """In order; `repeats` needs nothing of other pairs, but comes after all checks."""
        return [
            Stage("reading", self._texts),
            Stage("cleaning", self._each(PairWork.checks)),
            Stage("finding repeated lines", self._each(PairWork.repeats)),
            Stage(VOCABULARIES, self._models),
            Stage("tokenising", self._each(PairWork.ids)),
            Stage("writing shards", self._each(PairWork.shards)),
        ]

    @property
    def has_pieces(self) -> bool:
        """Whether an earlier run has made some."""
        return any((self.directory / name).exists() for name in STAGES)

    def each_pair(self) -> Iterator["PairWork"]:
        """The work on each pair, in order."""
        return (PairWork(self, pair) for pair in self.pairs)

    def _each(self, pieces: Callable[["PairWork"], Iterable[Piece]]):
        return lambda: itertools.chain.from_iterable(map(pieces, self.each_pair()))

    def _texts(self) -> list[Piece]:
        """The largest files first, because each is one piece."""
        files = {
            pair.text_path(split): (pair, split)
            for pair in self.each_pair()
            for split in pair.pair.files
        }
        pieces = [
            (sum(file.stat().st_size for file in pair.pair.files[split]), path, pair.cut(split))
            for path, (pair, split) in files.items()
        ]
        ordered = sorted(pieces, key=lambda piece: (-piece[0], piece[1]))
        return [Piece(path / "lines.json", make) for _, path, make in ordered]

    @property
    def tagged(self) -> list[str]:
        """The languages with a tag: those of targets, or of both sides."""
        sources = {pair.source for pair in self.pairs} if self.params.tags_on_both_sides else set()
        return sorted({pair.target for pair in self.pairs} | sources)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The trained vocabularies, of sources and of targets."""
        return self._vocabularies

    @functools.cached_property
    def _vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        source, target = (self._model_path(side) for side in SIDES)
        return Vocabulary.load(source), Vocabulary.load(target if target.exists() else source)

    def _model_path(self, side: str) -> Path:
        return self.directory / "models" / f"{side}.model"

    def _models(self) -> list[Piece]:
        both = [(side,) for side in SIDES] if self._separate else [SIDES]
        return [Piece(self._model_path(sides[0]), self._model(sides)) for sides in both]

    @property
    def _separate(self) -> bool:
        if not self.params.extend:
            return not self.params.joint_vocab
        old = [Vocabulary.load(Path(self.params.extend) / f"{side}.model") for side in SIDES]
        if old[0] != old[1] and self.params.joint_vocab:
            raise ValueError(
                f"{self.params.extend} has two vocabularies, which cannot be extended as one; "
                f"leave joint_vocab out."
            )
        return old[0] != old[1]

    def _model(self, sides: Sequence[str]):
        def make(progress):
            write_whole(self._model_path(sides[0]), self._trained(sides).model_bytes)

        return make

    def _trained(self, sides: Sequence[str]) -> Vocabulary:
        params, texts = self.params, self.texts(sides)
        options: dict[str, Any] = {
            "tags": self.tagged if sides[0] == SIDES[0] else (),
            "temperature": params.temperature,
            "character_coverage": params.character_coverage,
            "max_sentences": params.vocab_sentences,
            "seed": params.seed,
        }
        if params.extend:
            old = Vocabulary.load(Path(params.extend) / f"{sides[0]}.model")
            return extend_vocabulary(old, texts, params.new_pieces, **options)
        size = getattr(params, f"{sides[0]}_vocab_size")
        normalization = getattr(params, f"{sides[-1]}_normalization")
        return train_vocabulary(texts, size, normalization=normalization, **options)

    def texts(self, sides: Sequence[str]) -> dict[str, Texts]:
        """Language -> the kept train texts of these sides."""
        blocks: dict[str, list[Block]] = collections.defaultdict(list)
        for side in sides:
            for pair in self.each_pair():
                blocks[getattr(pair.pair, side)] += pair.kept_texts(SIDES.index(side))
        return {language: Texts(parts) for language, parts in blocks.items()}


@dataclasses.dataclass(frozen=True)
class PairWork:
    """The stages of one pair."""

    work: Work
    pair: CorpusPair

    # Text

    def text_path(self, split: str) -> Path:
        """The directory of the blocks of a split, which both directions share."""
        forward = self.pair.reverse() if self.pair.turned else self.pair
        return self.work.directory / "text" / split / forward.name

    def cut(self, split: str) -> Callable:
        """A function that cuts a split into blocks."""
        forward = self.pair.reverse() if self.pair.turned else self.pair
        path = self.text_path(split)

        def make(progress):
            counts = []
            for number, lines in enumerate(cut(forward.read(split))):
                text = "".join(f"{line.source}\n{line.target}\n" for line in lines)
                write_whole(path / f"{number:06}", text)
                counts.append(len(lines))
                progress(len(lines))
            write_whole(path / "lines.json", json.dumps(counts))

        return make

    def block_lines(self, split: str) -> list[int]:
        """The number of lines of each block."""
        if split not in self.pair.files:
            return []
        return json.loads((self.text_path(split) / "lines.json").read_text())

    def block(self, split: str, number: int) -> list[SentencePair]:
        """The lines of a block."""
        content = (self.text_path(split) / f"{number:06}").read_bytes()
        lines = content.decode("utf-8").split("\n")  # "\r" can be part of a line
        sides = lines[:-1:2], lines[1::2]
        return list(map(SentencePair, *(sides[::-1] if self.pair.turned else sides)))

    # Checks

    def checks(self) -> Iterator[Piece]:
        """Pieces: the verdict on each line."""
        for split in self.pair.files:
            for number, lines in enumerate(self.block_lines(split)):
                path = self._path("checks", split, number)
                yield Piece(path, self._check(split, number), lines)

    @property
    def rules(self):
        """The rules for single lines, in order; number 1 is the first."""
        return (Empty(), *self.work.params.cleaning)

    def _check(self, split, number):
        def make(progress):
            lines = self.block(split, number)
            languages = self.pair.source, self.pair.target
            verdicts = np.zeros(len(lines), np.uint8)
            for code, rule in enumerate(self.rules if split == "train" else self.rules[:1], 1):
                for i in np.flatnonzero(verdicts == KEPT):
                    if rule.drops(lines[i], languages):
                        verdicts[i] = code
            if split == "train":
                self._write_keys(number, lines, np.flatnonzero(verdicts == KEPT))
                key = self.work.params.duplicates.key
                for i in np.flatnonzero(verdicts == KEPT):
                    if key(lines[i].source) in self._held_out["source"]:
                        verdicts[i] = HELD_OUT
            write_whole(self._path("checks", split, number), verdicts.tobytes())

        return make

    def _write_keys(self, number, lines, kept):
        """Writes the hashes of lines, sorted."""
        key = self.work.params.duplicates.key
        texts = (f"{key(lines[i].source)}\n{key(lines[i].target)}".encode() for i in kept)
        _save(self._path("keys", "train", number), sorted_keys(texts, kept))

    @functools.cached_property
    def _held_out(self) -> dict[str, dict[str, int]]:
        """Side -> keys of the texts of dev and test -> their numbers."""
        key = self.work.params.duplicates.key
        found: dict[str, dict[str, int]] = {side: {} for side in SIDES}
        for lines in map(self._filled, SPLITS[1:]):
            for line in lines:
                for side, numbers in found.items():
                    numbers.setdefault(key(getattr(line, side)), len(numbers))
        return found

    def _filled(self, split: str) -> list[SentencePair]:
        """The lines of dev or test without blank sides."""
        blocks = (self.block(split, number) for number in range(len(self.block_lines(split))))
        empty, languages = Empty(), (self.pair.source, self.pair.target)
        return [line for lines in blocks for line in lines if not empty.drops(line, languages)]

    # Repeats

    def repeats(self) -> list[Piece]:
        """Pieces: the repeated lines whose hashes are in a range."""
        if "train" not in self.pair.files:
            return []
        lines = sum(self.block_lines("train"))
        return [
            Piece(path, self._find_repeats(path, part), lines // len(self._repeats_paths))
            for part, path in enumerate(self._repeats_paths)
        ]

    @functools.cached_property
    def _repeats_paths(self) -> list[Path]:
        lines = sum(self.block_lines("train"))
        count = max(1, -(-lines * _BYTES_PER_KEY // self.work.memory))
        directory = self.work.directory / "repeats" / self.pair.name
        return [directory / f"{part:05}-of-{count:05}.npy" for part in range(count)]

    def _find_repeats(self, path, part):
        def make(progress):
            paths = (self._path("keys", "train", number) for number in range(len(self._starts)))
            blocks = (np.load(path, mmap_mode="r") for path in paths)
            _save(path, repeated_lines(blocks, self._starts, part, len(self._repeats_paths)))

        return make

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """The number of the first line of each block of train, and the end."""
        return np.concatenate([[0], np.cumsum(self.block_lines("train"), dtype=np.int64)])[:-1]

    @functools.cached_property
    def _repeated(self) -> list[np.ndarray]:
        return [np.load(path, mmap_mode="r") for path in self._repeats_paths]

    def verdicts(self, split: str, number: int) -> np.ndarray:
        """uint8 [lines of the block]: KEPT, REPEATED, HELD_OUT, or the number of a rule."""
        verdicts = np.fromfile(self._path("checks", split, number), np.uint8)
        if split == "train":
            start = self._starts[number]
            for lines in self._repeated:
                first, last = np.searchsorted(lines, (start, start + len(verdicts)))
                verdicts[lines[first:last] - start] = REPEATED
        return verdicts

    @functools.cached_property
    def kept_counts(self) -> list[int]:
        """The number of kept lines of each block of train."""
        blocks = range(len(self.block_lines("train")))
        return [int(np.sum(self.verdicts("train", number) == KEPT)) for number in blocks]

    def kept(self, split: str, number: int) -> list[SentencePair]:
        """The kept lines of a block."""
        lines = self.block(split, number)
        return [lines[i] for i in np.flatnonzero(self.verdicts(split, number) == KEPT)]

    def kept_texts(self, side: int) -> Iterator[Block]:
        """One side of the kept lines of train."""

        def read(number):
            return [line[side] for line in self.kept("train", number)]

        for number, count in enumerate(self.kept_counts):
            yield Block(count, functools.partial(read, number))

    # Ids

    def ids(self) -> Iterator[Piece]:
        """Pieces: the ids of the kept lines."""
        for split in self.pair.files:
            for number, lines in enumerate(self.block_lines(split)):
                yield Piece(self._path("ids", split, number), self._tokenise(split, number), lines)

    def _tokenise(self, split, number):
        def make(progress):
            lines = self.kept(split, number)
            vocabularies, params = self.work.vocabularies(), self.work.params
            layout = OnBothSides() if params.tags_on_both_sides else OnSource()
            tags = vocabularies[0].tags
            both = tags.get(self.pair.source, UNK), tags[self.pair.target]
            longest = params.max_length if split == "train" else None
            arrays = encode_lines(lines, vocabularies, layout, both, longest)
            held = self._held_out["target"] if split == "train" else {}
            found = {held[k] for line in lines if (k := params.duplicates.key(line.target)) in held}
            arrays["held_targets"] = np.array(sorted(found), np.int64)
            scored = [] if split == "train" else [line.target for line in lines]
            arrays["changed"] = np.array(count_changed(vocabularies[1], scored))
            file = io.BytesIO()
            np.savez(file, **arrays)  # type: ignore[arg-type]
            write_whole(self._path("ids", split, number), file.getvalue())

        return make

    def load_ids(self, split: str, number: int, *names: str) -> list[np.ndarray]:
        """Arrays that `ids` made of a block: source, target, lengths [examples, 2], …"""
        with np.load(self._path("ids", split, number)) as file:
            return [file[name] for name in names]

    @functools.cached_property
    def counts(self) -> dict[str, list[int]]:
        """Split -> the number of examples of each block."""
        found = {}
        for split in self.pair.files:
            blocks = range(len(self.block_lines(split)))
            found[split] = [len(self.load_ids(split, b, "lengths")[0]) for b in blocks]
        return found

    # Shards

    def shards(self) -> Iterator[Piece]:
        """Pieces: the shards."""
        for split, paths in self.shard_paths().items():
            bounds = shard_bounds(sum(self.counts[split]), len(paths))
            for path, start, end in zip(paths, bounds, bounds[1:], strict=False):
                yield Piece(path, self._write_shard(path, split, start, end), end - start)

    def shard_paths(self) -> dict[str, list[Path]]:
        """Split -> its shards."""
        directory, found = self.work.directory / "shards", {}
        for split, counts in self.counts.items():
            count = -(-sum(counts) // self.work.params.shard_size)
            names = [f"{self.pair.name}-{i:05d}-of-{count:05d}.records" for i in range(count)]
            found[split] = [directory / split / name for name in names]
        return found

    def _write_shard(self, path, split, start, end):
        def make(progress):
            with new_file(path) as partial:
                write_shard(partial, self._examples(split, start, end))

        return make

    def _examples(self, split: str, start: int, end: int) -> Iterator[Example]:
        """Examples start to end of a split."""
        first = 0
        for number, count in enumerate(self.counts[split]):
            if first < end and first + count > start:
                examples = self._block_examples(split, number)
                yield from itertools.islice(examples, max(0, start - first), end - first)
            first += count

    def _block_examples(self, split: str, number: int) -> Iterator[Example]:
        lengths, *ids = self.load_ids(split, number, "lengths", *SIDES)
        sides = [np.split(side, np.cumsum(n))[:-1] for side, n in zip(ids, lengths.T, strict=True)]
        if split == "train":
            return map(Example, *sides)
        texts = zip(*self.kept(split, number), strict=True)
        return map(Example, *sides, *texts)

    # Counts

    def summary(self) -> dict[str, int]:
        """The counts of the checks, by kind."""
        counts = np.zeros(256, np.int64)
        too_long, changed, found = 0, 0, set()
        for split in self.pair.files:
            for number in range(len(self.block_lines(split))):
                counts += np.bincount(self.verdicts(split, number), minlength=256)
                names = "fits", "held_targets", "changed"
                fits, targets, changed_here = self.load_ids(split, number, *names)
                changed += int(changed_here)
                too_long += int(np.sum(~fits))
                found.update(targets.tolist())
        held = self._held_out["target"]
        key = self.work.params.duplicates.key
        held_out = itertools.chain.from_iterable(map(self._filled, SPLITS[1:]))
        return {
            **{rule.name: int(counts[code]) for code, rule in enumerate(self.rules, 1)},
            "duplicates": int(counts[REPEATED]),
            "held_out_in_train": int(counts[HELD_OUT]),
            "targets_in_train": sum(held[key(line.target)] in found for line in held_out),
            "targets_changed": changed,
            "too_long": too_long,
        }

    def _path(self, stage: str, split: str, number: int) -> Path:
        return self.work.directory / stage / split / self.pair.name / f"{number:06}"


def _save(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file, for np.load with a memory map."""
    file = io.BytesIO()
    np.save(file, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, file.getvalue())
