"""The pieces of one pair: its text, checks, repeated lines and examples; see `data.stages`."""

import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.cleaning.base import Empty
from lingvo_moe.data.corpora import CorpusPair, SentencePair
from lingvo_moe.data.dataset import FILE, SIDES, SPLITS, Dataset, Example
from lingvo_moe.data.distinct import least, least_of
from lingvo_moe.data.language_tags import OnBothSides, OnSource
from lingvo_moe.data.lengths import add_tables, count_ratios, length_ratio, tabulate
from lingvo_moe.data.normalization import DIGITS, normalize
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.records import write_records
from lingvo_moe.data.vocabulary import SPACE, UNK, Vocabulary
from lingvo_moe.system import npz
from lingvo_moe.system.files import new_file, write_whole

_BLOCK_LINES, _BLOCK_CHARACTERS = 50_000, 8_000_000


def split_into_blocks(lines: Iterable[SentencePair], most: int) -> Iterator[list[SentencePair]]:
    """Cuts lines into blocks of at most `most` lines and about _BLOCK_CHARACTERS."""
    block: list[SentencePair] = []
    characters = 0
    for line in lines:
        block.append(line)
        characters += len(line.source) + len(line.target)
        if len(block) >= most or characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


class Texts(Sequence):
    """Texts on disk as a sequence; one block at a time is in memory."""

    def __init__(self, blocks: Iterable[tuple[int, Callable[[], list[str]]]]):
        """Blocks are numbers of texts, each with a function that reads them."""
        self._blocks = [block for block in blocks if block[0]]
        self._ends = np.cumsum([count for count, _ in self._blocks], dtype=np.int64)
        self._block = functools.lru_cache(1)(lambda number: self._blocks[number][1]())

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._blocks else 0

    def __getitem__(self, index):
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._block(number)[index - self._ends[number]]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(self._block, range(len(self._blocks))))


def hashes(texts: Iterable[str]) -> np.ndarray:
    """The 128-bit hash of each text, as S16: 16 bytes."""
    digests = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "S16")


STAGES = ("text", "checks", "keys", "repeats", "models", "examples")  # directories


class Piece(NamedTuple):
    """A part of a stage."""

    path: Path  # the file that appears when it is finished
    # makes it; takes a function to call with numbers of finished lines
    make: Callable[[Callable[[int], None]], None]
    lines: int = 0  # number of lines, for progress; 0 if `make` counts them


@dataclasses.dataclass(frozen=True)
class Work:
    """One preparation of a dataset."""

    directory: Path  # the directory of the pieces
    pairs: tuple[CorpusPair, ...]  # the pairs of the dataset, in order
    params: PrepareParams  # the params
    memory: int  # bytes for sorting in each process
    # file of the corpus -> its `digest_of` before any work
    digests: Mapping[Path, str] = dataclasses.field(default_factory=dict)
    # most lines of a block; helper processes get the value of their parent
    lines_a_block: int = dataclasses.field(default_factory=lambda: _BLOCK_LINES)

    @property
    def has_pieces(self) -> bool:
        """Whether an earlier run has made pieces."""
        return any((self.directory / name).exists() for name in STAGES)

    @property
    def tagged(self) -> list[str]:
        """The languages with a tag: those of targets, or of both sides."""
        sources = {pair.source for pair in self.pairs} if self.params.tags_on_both_sides else set()
        return sorted({pair.target for pair in self.pairs} | sources)

    @functools.cached_property
    def _normalizers(self) -> list[Callable[[Sequence[str]], list[str]]]:
        """What both sides' vocabularies, which need not exist yet, make of texts."""
        params = self.params
        if params.extend:
            paths = (Path(params.extend) / f"{side}.model" for side in SIDES)
            return [Vocabulary.load(path).normalize for path in paths]
        target = params.target_normalization
        source = target if params.joint_vocab else params.source_normalization
        of_digits = functools.partial(normalize, ascii_digits=DIGITS)  # sources may lose theirs
        return [functools.partial(of_digits, rules=name) for name in (source, target)]

    def key(self, text: str, *sides: int) -> str:
        """The key of a text as read by the vocabularies of these sides (0 source, 1 target); texts
        with equal keys count as the same."""
        for side in sides:
            (text,) = self._normalizers[side]([text])
        return self.params.duplicates.key(" ".join(text.replace(SPACE, " ").split()))

    def model_path(self, side: str) -> Path:
        """The file of a vocabulary; there is none for targets if both sides share one."""
        return self.directory / "models" / f"{side}.model"

    def each_pair(self) -> Iterator["PairWork"]:
        """The work on each pair, in order."""
        return (PairWork(self, pair) for pair in self.pairs)

    @functools.cached_property
    def extended(self) -> Dataset | None:
        """The dataset that is extended; None if nothing is extended, or a model. Raises ValueError:
        as `Dataset.load`."""
        directory = Path(self.params.extend)
        is_dataset = self.params.extend and (directory / FILE).exists()
        return Dataset.load(directory) if is_dataset else None

    @functools.cached_property
    def held_targets(self) -> dict[str, np.ndarray]:
        """Target language -> the hashes of the targets of dev and test of all its pairs, sorted."""
        return self.by_target(PairWork.held_target_hashes)

    def by_target(self, hashes_of: Callable[["PairWork"], np.ndarray]) -> dict[str, np.ndarray]:
        """Target language -> the hashes of all its pairs, sorted."""
        found = collections.defaultdict(list)
        for pair in self.each_pair():
            found[pair.pair.target].append(hashes_of(pair))
        return {language: np.unique(np.concatenate(parts)) for language, parts in found.items()}

    @functools.cached_property
    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The trained vocabularies, of sources and of targets."""
        source, target = map(self.model_path, SIDES)
        of_target = target if target.exists() else source
        return Vocabulary.load(source), Vocabulary.load(of_target)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


KEPT, REPEATED, HELD_OUT = 0, 254, 255  # verdicts on lines; other values are numbers of rules
_BYTES_PER_KEY = 80  # memory for sorting


@dataclasses.dataclass(frozen=True)
class PairWork:
    """The stages of one pair."""

    work: Work
    pair: CorpusPair

    # Text

    def text_path(self, split: str) -> Path:
        """The directory of the blocks of a split, which both directions share."""
        return self.work.directory / "text" / split / self._forward(split).name

    def _forward(self, split: str) -> CorpusPair:
        """The pair in the direction of the files of a split."""
        return self.pair.reverse() if split in self.pair.turned else self.pair

    def cut(self, split: str, progress: Callable[[int], None]) -> None:
        """Writes a split in blocks, and their numbers of lines."""
        forward, path, counts = self._forward(split), self.text_path(split), []
        try:
            for number, lines in enumerate(
                split_into_blocks(forward.read(split), self.work.lines_a_block)
            ):
                text = "".join(f"{line.source}\n{line.target}\n" for line in lines)
                write_whole(path / f"{number:06}", text)
                counts.append(len(lines))
                progress(len(lines))
        finally:  # also if a change is why a file cannot be read
            for file in forward.files[split]:
                if digest_of(file) != self.work.digests[file]:
                    raise ValueError(
                        f"{file} changed while it was read; prepare again when nothing writes it."
                    )
        write_whole(path / "lines.json", json.dumps(counts))

    @functools.cached_property
    def block_lines(self) -> dict[str, list[int]]:
        """Split -> the number of lines of each block; also of splits without files."""
        paths = {split: self.text_path(split) / "lines.json" for split in self.pair.files}
        found = {split: json.loads(path.read_bytes()) for split, path in paths.items()}
        return {split: found.get(split, []) for split in SPLITS}

    def blocks(self, *splits: str) -> Iterator[tuple[str, int]]:
        """The split and the number of each block; of all splits if none is given."""
        for split in splits or SPLITS:
            for number in range(len(self.block_lines[split])):
                yield split, number

    def block(self, split: str, number: int) -> list[SentencePair]:
        """The lines of a block."""
        path = self.text_path(split) / f"{number:06}"
        lines = path.read_bytes().decode("utf-8").split("\n")  # "\r" can be part of a line
        sides = lines[:-1:2], lines[1::2]
        return list(map(SentencePair, *(sides[::-1] if split in self.pair.turned else sides)))

    # Checks

    def checks(self) -> Iterator[Piece]:
        """Pieces: the verdict on each line."""
        return self._pieces("checks", self._check)

    def _pieces(self, stage: str, make: Callable[..., None]) -> Iterator[Piece]:
        """A piece for each block, made by make(split, number, progress)."""
        for split, number in self.blocks():
            path, lines = self._path(stage, split, number), self.block_lines[split][number]
            yield Piece(path, functools.partial(make, split, number), lines)

    @property
    def rules(self):
        """The rules for single lines, in order; number 1 is the first."""
        return (Empty(), *self.work.params.cleaning)

    def _check(self, split, number, progress):
        lines = self.block(split, number)
        languages = self.pair.source, self.pair.target
        verdicts = np.zeros(len(lines), np.uint8)
        for code, rule in enumerate(self.rules if split == "train" else self.rules[:1], 1):
            for i in np.flatnonzero(verdicts == KEPT):
                if rule.drops(lines[i], languages):
                    verdicts[i] = code
        if split == "train":
            kept = np.flatnonzero(verdicts == KEPT)
            lines = [lines[i] for i in kept]
            keys = [(self.work.key(s, 0), self.work.key(t, 1)) for s, t in lines]
            _save(self._path("keys", "train", number), hashes(map("\n".join, keys)))
            held = np.isin(hashes(source for source, _ in keys), self._held_sources)
            if len(self._held_turned):
                turned = self._pair_hashes(line[::-1] for line in lines)
                held |= np.isin(turned, self._held_turned)
            if self.work.params.held_out_targets:
                held_targets = self.work.held_targets[self.pair.target]
                held |= np.isin(hashes(target for _, target in keys), held_targets)
            verdicts[kept[held]] = HELD_OUT
        write_whole(self._path("checks", split, number), verdicts.tobytes())

    @functools.cached_property
    def _held_sources(self) -> np.ndarray:
        """The hashes of the sources of dev and test."""
        lines = itertools.chain(self._held_out(), self._held_out_in_extended())
        return np.unique(hashes(self.work.key(line.source, 0) for line in lines))

    @functools.cached_property
    def _held_turned(self) -> np.ndarray:
        """The hashes of the sentence pairs of dev and test of the other direction."""
        turned, files = PairWork(self.work, self.pair.reverse()), self.pair.files
        own = (
            other._filled(split)
            for other in self.work.each_pair()
            for split in SPLITS[1:]
            # In the same files each source is a held-out source.
            if other.pair.name == turned.pair.name
            and other.pair.files.get(split) != files.get(split)
        )
        lines = itertools.chain(turned._held_out_in_extended(), *own)
        return np.unique(self._pair_hashes(lines))

    def _pair_hashes(self, lines: Iterable[Sequence[str]]) -> np.ndarray:
        """The hashes of sentence pairs; both texts are read as by both vocabularies."""
        keys = ((self.work.key(text, 0, 1) for text in line) for line in lines)
        return hashes(map("\n".join, keys))

    def held_target_hashes(self) -> np.ndarray:
        """The hashes of the targets of dev and test, also of those of the extended dataset."""
        own = self._target_hashes(list(self._held_out()))
        others = self._target_hashes(list(self._held_out_in_extended()))
        return np.concatenate([own, np.setdiff1d(others, own)])

    def _target_hashes(self, lines: Sequence[SentencePair]) -> np.ndarray:
        return hashes(self.work.key(line.target, 1) for line in lines)

    def _held_out(self) -> Iterator[SentencePair]:
        return itertools.chain.from_iterable(map(self._filled, SPLITS[1:]))

    def _held_out_in_extended(self) -> Iterator[SentencePair]:
        """The dev and test lines of this pair in the dataset that is extended, if it is one: models
        are trained on both datasets together, and measured on these lines."""
        dataset = self.work.extended
        if dataset and self.pair.name in {pair.name for pair in dataset.pairs}:
            for split in SPLITS[1:]:
                for example in dataset.examples(split, self.pair.name):
                    yield SentencePair(example.source_text, example.target_text)

    def _filled(self, split: str) -> list[SentencePair]:
        """The lines of dev or test without blank sides."""
        blocks = (self.block(*block) for block in self.blocks(split))
        empty, languages = Empty(), (self.pair.source, self.pair.target)
        return [line for lines in blocks for line in lines if not empty.drops(line, languages)]

    # Repeats

    def repeats(self) -> list[Piece]:
        """Pieces: the repeated lines of each range of hashes."""
        lines = sum(self.block_lines["train"]) // max(1, len(self._repeats_paths))
        return [
            Piece(path, functools.partial(self._find_repeats, part), lines)
            for part, path in enumerate(self._repeats_paths)
        ]

    @functools.cached_property
    def _repeats_paths(self) -> list[Path]:
        lines = sum(self.block_lines["train"])
        count = -(-lines * _BYTES_PER_KEY // self.work.memory)
        directory = self.work.directory / "repeats" / self.pair.name
        return [directory / f"{part:05}-of-{count:05}.npy" for part in range(count)]

    def _find_repeats(self, part, progress):
        """Writes the numbers of the lines whose keys are in this range and not new, ascending."""
        keys, lines = [np.empty(0, "S16")], [np.empty(0, np.int64)]
        for block, start in zip(self.blocks("train"), self._starts, strict=True):
            verdicts = np.fromfile(self._path("checks", *block), np.uint8)
            numbers = np.flatnonzero((verdicts == KEPT) | (verdicts == HELD_OUT)) + start
            of_block = np.load(self._path("keys", *block))
            here = of_block.view("<u8")[::2] % np.uint64(len(self._repeats_paths)) == part
            keys.append(of_block[here])
            lines.append(numbers[here])
        _, first = np.unique(np.concatenate(keys), return_index=True)
        _save(self._repeats_paths[part], np.delete(np.concatenate(lines), first))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """int64 [blocks]: the number of the first line of each block of train."""
        return np.concatenate([[0], np.cumsum(self.block_lines["train"], dtype=np.int64)])[:-1]

    def verdicts(self, split: str, number: int) -> np.ndarray:
        """uint8 [lines of the block]: KEPT, REPEATED, HELD_OUT, or the number of a rule."""
        verdicts = np.fromfile(self._path("checks", split, number), np.uint8)
        if split == "train":
            start = self._starts[number]
            for path in self._repeats_paths:
                lines = np.load(path, mmap_mode="r")  # not kept: a map is an open file
                first, last = np.searchsorted(lines, (start, start + len(verdicts)))
                verdicts[lines[first:last] - start] = REPEATED
        return verdicts

    def left_out(self, *splits: str) -> dict[str, int]:
        """The number of lines of these splits that are left out, by the rule or other reason."""
        counts = np.zeros(256, np.int64)
        for block in self.blocks(*splits):
            counts += np.bincount(self.verdicts(*block), minlength=256)
        reasons = {code: rule.name for code, rule in enumerate(self.rules, 1)}
        reasons |= {REPEATED: "duplicates", HELD_OUT: "held_out_in_train"}
        return {name: int(counts[code]) for code, name in reasons.items()}

    @functools.cached_property
    def kept_counts(self) -> list[int]:
        """The number of kept lines of each block of train."""
        return [int(np.sum(self.verdicts(*block) == KEPT)) for block in self.blocks("train")]

    def kept(self, split: str, number: int) -> list[SentencePair]:
        """The kept lines of a block."""
        lines = self.block(split, number)
        return [lines[i] for i in np.flatnonzero(self.verdicts(split, number) == KEPT)]

    def sampled_targets(self, split: str) -> list[str]:
        """Some targets of kept lines, spread over the first and three further blocks."""
        blocks, most = list(self.blocks(split)), 2000 if split == "train" else 200
        chosen = blocks[:: -(-len(blocks) // 4) or 1]
        targets = [line.target for block in chosen for line in self.kept(*block)]
        return targets[:: -(-len(targets) // most) or 1]

    def kept_texts(self, side: int) -> Iterator[tuple[int, Callable[[], list[str]]]]:
        """One side of the kept lines of train: blocks of a `Texts`."""

        def read(number):
            return [line[side] for line in self.kept("train", number)]

        for number, count in enumerate(self.kept_counts):
            yield count, functools.partial(read, number)

    # Examples

    def examples(self) -> Iterator[Piece]:
        """Pieces: a shard of the examples of each block."""
        return self._pieces("examples", self._encode)

    def _encode(self, split, number, progress):
        """Writes what is counted of the kept lines of a block, and then their examples."""
        lines, is_train = self.kept(split, number), split == "train"
        work, vocabularies = self.work, self.work.vocabularies
        layout = OnBothSides() if work.params.tags_on_both_sides else OnSource()
        tags = vocabularies[0].tags
        both = tags.get(self.pair.source, UNK), tags[self.pair.target]
        texts = [[line[side] for line in lines] for side in (0, 1)]
        pieces = [v.encode(of_side) for v, of_side in zip(vocabularies, texts, strict=True)]
        ids = [layout.example(both, *sides) for sides in zip(*pieces, strict=True)]
        lengths = np.array([list(map(len, sides)) for sides in ids], np.int32).reshape(-1, 2)
        fits = (lengths <= work.params.max_length).all(axis=1) | (not is_train)
        fitting = np.flatnonzero(fits)
        targets = self._target_hashes([lines[i] for i in fitting] if is_train else [])
        counts = {
            "examples": len(fitting),
            "too_long": len(lines) - len(fitting),
            "table": tabulate(lengths),
            "ratios": count_ratios(lengths),
            "least_targets": np.array(least(targets), np.int64),
            "held_targets": np.flatnonzero(np.isin(work.held_targets[self.pair.target], targets)),
            "changed": count_changed(vocabularies[1], [] if is_train else texts[1]),
        }
        path = self._path("examples", split, number)
        arrays = {name: np.asarray(count) for name, count in counts.items()}
        npz.save(path.with_suffix(".npz"), compress=False, **arrays)
        examples = []
        for i in fitting:
            source, target = (np.array(side, np.int32) for side in ids[i])
            examples.append(Example(source, target, *(() if is_train else lines[i])))
        with new_file(path) as partial:
            write_records(partial, examples)

    def shards(self) -> dict[str, dict[Path, int]]:
        """Split -> its shards that have examples, each with their number."""
        return {
            split: {
                self._path("examples", *block): int(count)
                for block, count in zip(
                    self.blocks(split), self._of_blocks("examples", split), strict=True
                )
                if count
            }
            for split in self.pair.files
        }

    # Counts

    def lengths(self) -> dict[str, list[list[int]]]:
        """Split -> the table of the lengths of its lines, before any is left out as too long."""
        return {
            split: add_tables(self._of_blocks("table", split)).tolist()
            for split in self.pair.files
            if split != "test"
        }

    def length_ratio(self) -> float:
        """The ratio of lengths that almost all lines of train and dev have at most."""
        counts = self._of_blocks("ratios", "train", "dev")
        return length_ratio(np.array(counts).sum(axis=0)) if counts else 0.0

    def least_targets(self) -> list[int]:
        """The least hashes of the targets of train."""
        return least_of(part.tolist() for part in self._of_blocks("least_targets", "train"))

    def held_targets_in_train(self) -> np.ndarray:
        """The hashes of targets of dev and test of any pair that are in this pair's train."""
        numbers = self._of_blocks("held_targets", "train")
        held = self.work.held_targets[self.pair.target]
        return held[np.unique(np.concatenate([*numbers, np.empty(0, np.int64)]))]

    def _of_blocks(self, name: str, *splits: str) -> list[np.ndarray]:
        """What is counted of each block; see `_encode`."""
        found = []
        for block in self.blocks(*splits):
            with np.load(self._path("examples", *block).with_suffix(".npz")) as counts:
                found.append(counts[name])
        return found

    def summary(self, targets_in_train: np.ndarray) -> dict[str, int]:
        """The counts of the checks, by kind, from `held_targets_in_train` of all pairs with this
        target language."""
        in_train = np.isin(self.held_target_hashes(), targets_in_train)
        return {
            **self.left_out(),
            "targets_in_train": int(np.sum(in_train)),
            "targets_changed": int(sum(self._of_blocks("changed"))),
            "too_long": int(sum(self._of_blocks("too_long"))),
        }

    def _path(self, stage: str, split: str, number: int) -> Path:
        return self.work.directory / stage / split / self.pair.name / f"{number:06}"


def _save(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file, for np.load with a memory map."""
    file = io.BytesIO()
    np.save(file, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, file.getvalue())


def count_changed(vocabulary: Vocabulary, texts: Sequence[str]) -> int:
    """The number of texts that change when encoded and decoded, but for their spaces and accents'
    form: a model cannot write them."""
    restored = vocabulary.decode(vocabulary.encode(texts))
    words = [
        [unicodedata.normalize("NFC", text).split() for text in side] for side in (texts, restored)
    ]
    return sum(text != written for text, written in zip(*words, strict=True))
