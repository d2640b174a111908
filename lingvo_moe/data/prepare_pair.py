"""The pieces of one pair: its text, checks, repeated lines, ids and shards; see `data.stages`."""

import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.cleaning.base import Empty
from lingvo_moe.data.corpora import CorpusPair, SentencePair
from lingvo_moe.data.dataset import FILE, SIDES, SPLITS, Dataset, Example, shard_bounds
from lingvo_moe.data.language_tags import LanguageTags, OnBothSides, OnSource
from lingvo_moe.data.lengths import add_tables, count_ratios, length_ratio, tabulate
from lingvo_moe.data.normalization import normalize
from lingvo_moe.data.prepare_params import PrepareParams
from lingvo_moe.data.records import write_records
from lingvo_moe.data.vocabulary import SPACE, UNK, Vocabulary
from lingvo_moe.system import npz
from lingvo_moe.system.files import new_file, write_whole

_BLOCK_LINES, _BLOCK_CHARACTERS = 20_000, 8_000_000


def split_into_blocks(lines: Iterable[SentencePair]) -> Iterator[list[SentencePair]]:
    """Cuts lines into blocks of at most _BLOCK_LINES and about _BLOCK_CHARACTERS."""
    block: list[SentencePair] = []
    characters = 0
    for line in lines:
        block.append(line)
        characters += len(line.source) + len(line.target)
        if len(block) >= _BLOCK_LINES or characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


class Block(NamedTuple):
    """A block of texts on disk."""

    lines: int  # number of texts
    read: Callable[[], list[str]]  # reads the texts


class Texts(Sequence):
    """Texts on disk as a sequence; one block at a time is in memory."""

    def __init__(self, blocks: Iterable[Block]):
        self._blocks = [block for block in blocks if block.lines]
        self._ends = np.cumsum([block.lines for block in self._blocks], dtype=np.int64)
        self._loaded: tuple[int, list[str]] = -1, []

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._blocks else 0

    def __getitem__(self, index):
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._block(number)[index - self._ends[number]]

    def __iter__(self) -> Iterator[str]:
        return (text for number in range(len(self._blocks)) for text in self._block(number))

    def _block(self, number: int) -> list[str]:
        if self._loaded[0] != number:
            self._loaded = number, self._blocks[number].read()
        return self._loaded[1]


_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("line", "<u4")])


def hashes(texts: Iterable[bytes]) -> np.ndarray:
    """The 128-bit hash of each text, as S16: 16 bytes."""
    digests = (hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "S16")


def sorted_keys(texts: Iterable[bytes], lines: np.ndarray) -> np.ndarray:
    """The hash and the number of each line of a block, sorted by hash, then by number; `lines` are
    the numbers, ascending."""
    numbers = hashes(texts).view("<u8").reshape(-1, 2)
    keys = np.empty(len(lines), _KEY)
    keys["high"], keys["low"], keys["line"] = numbers[:, 0], numbers[:, 1], lines
    return keys[np.lexsort((keys["low"], keys["high"]))]


def repeated_lines(
    blocks: Iterable[np.ndarray], starts: np.ndarray, part: int, parts: int
) -> np.ndarray:
    """The numbers of the lines that repeat an earlier line: int64, ascending. Of the `sorted_keys`
    of each block, which begins at line `starts`, only range `part` of `parts` of the hashes is
    read."""
    bounds = np.array([i * 2**64 // parts for i in range(1, parts)], np.uint64)
    highs, lows, lines = (np.empty(0, kind) for kind in (np.uint64, np.uint64, np.int64))
    columns: list[tuple[np.ndarray, ...]] = [(highs, lows, lines)]
    for keys, start in zip(blocks, starts, strict=True):
        ends = [0, *np.searchsorted(keys["high"], bounds), len(keys)]
        chosen = keys[ends[part] : ends[part + 1]]
        # Copies, so that no more than one block is mapped.
        high_low = np.array(chosen["high"]), np.array(chosen["low"])
        columns.append((*high_low, chosen["line"] + np.int64(start)))
    highs, lows, lines = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((lows, highs))  # stable: equal keys stay in the order of lines
    highs, lows, lines = highs[order], lows[order], lines[order]
    same = (highs[1:] == highs[:-1]) & (lows[1:] == lows[:-1])
    return np.sort(lines[1:][same])


STAGES = ("text", "held_out", "checks", "keys", "repeats", "models", "ids", "shards")  # directories


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
        return [functools.partial(normalize, rules=name) for name in (source, target)]

    def key(self, text: str, *sides: int) -> str:
        """The key of a text as read by the vocabularies of these sides (0 source, 1 target); texts
        with equal keys count as the same."""
        for side in sides:
            (text,) = self._normalizers[side]([text])
        return self.params.duplicates.key(" ".join(text.replace(SPACE, " ").split()))

    def model_path(self, side: str) -> Path:
        """The file of a vocabulary; there is none for targets if both sides share one."""
        return self.directory / "models" / f"{side}.model"

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
_SAMPLED_BLOCKS = 4  # for statistics


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
            for number, lines in enumerate(split_into_blocks(forward.read(split))):
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
            both = (f"{source}\n{target}".encode() for source, target in keys)
            _save(self._path("keys", "train", number), sorted_keys(both, kept))
            held = np.isin(hashes(source.encode() for source, _ in keys), self._held_sources)
            if len(self._held_turned):
                turned = self._pair_hashes(line[::-1] for line in lines)
                held |= np.isin(turned, self._held_turned)
            if self.work.params.held_out_targets:
                held |= np.isin(hashes(key.encode() for _, key in keys), self._held_targets)
            verdicts[kept[held]] = HELD_OUT
        write_whole(self._path("checks", split, number), verdicts.tobytes())

    @functools.cached_property
    def _held_sources(self) -> np.ndarray:
        """The hashes of the sources of dev and test."""
        lines = itertools.chain(self._held_out(), self._held_out_in_extended())
        return np.unique(hashes(self.work.key(line.source, 0).encode() for line in lines))

    @functools.cached_property
    def _held_turned(self) -> np.ndarray:
        """The hashes of the sentence pairs of dev and test of the other direction."""
        turned, files = PairWork(self.work, self.pair.reverse()), self.pair.files
        own = (
            other._filled(split)
            for other in each_pair(self.work)
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
        return hashes("\n".join(line).encode() for line in keys)

    @functools.cached_property
    def _held_targets(self) -> np.ndarray:
        """The hashes of the targets of dev and test, of all pairs with this target language."""
        return np.load(held_targets_path(self.work, self.pair.target))

    def held_target_hashes(self) -> np.ndarray:
        """The hashes of the targets of dev and test, also of those of the extended dataset."""
        own = self._target_hashes(list(self._held_out()))
        others = self._target_hashes(list(self._held_out_in_extended()))
        return np.concatenate([own, np.setdiff1d(others, own)])

    def _target_hashes(self, lines: Sequence[SentencePair]) -> np.ndarray:
        return hashes(self.work.key(line.target, 1).encode() for line in lines)

    def _held_out(self) -> Iterator[SentencePair]:
        return itertools.chain.from_iterable(map(self._filled, SPLITS[1:]))

    def _held_out_in_extended(self) -> Iterator[SentencePair]:
        """The dev and test lines of this pair in the dataset that is extended, if it is one: models
        are trained on both datasets together, and measured on these lines."""
        dataset = extended_dataset(self.work.params)
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
        paths = (self._path("keys", *block) for block in self.blocks("train"))
        repeated = repeated_lines(map(_map, paths), self._starts, part, len(self._repeats_paths))
        _save(self._repeats_paths[part], repeated)

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
                lines = _map(path)  # not kept: a map is an open file
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

    def sample(self, split: str, most: int = 2000) -> list[SentencePair]:
        """At most this number of kept lines, spread over the first and every further block."""
        blocks = list(self.blocks(split))
        blocks = blocks[:: -(-len(blocks) // _SAMPLED_BLOCKS) or 1]
        lines = [line for block in blocks for line in self.kept(*block)]
        return lines[:: -(-len(lines) // most) or 1]

    def kept_texts(self, side: int) -> Iterator[Block]:
        """One side of the kept lines of train."""

        def read(number):
            return [line[side] for line in self.kept("train", number)]

        for number, count in enumerate(self.kept_counts):
            yield Block(count, functools.partial(read, number))

    # Ids

    def ids(self) -> Iterator[Piece]:
        """Pieces: the ids of the kept lines."""
        return self._pieces("ids", self._tokenise)

    def _tokenise(self, split, number, progress):
        lines = self.kept(split, number)
        vocabularies, params = self.work.vocabularies, self.work.params
        layout = OnBothSides() if params.tags_on_both_sides else OnSource()
        tags = vocabularies[0].tags
        both = tags.get(self.pair.source, UNK), tags[self.pair.target]
        longest = params.max_length if split == "train" else None
        arrays = encode_lines(lines, vocabularies, layout, both, longest)
        fitting = np.flatnonzero(arrays["fits"]) if split == "train" else ()
        targets = self._target_hashes([lines[i] for i in fitting])
        arrays["held_targets"] = np.flatnonzero(np.isin(self._held_targets, targets))
        scored = [] if split == "train" else [line.target for line in lines]
        arrays["changed"] = np.array(count_changed(vocabularies[1], scored))
        npz.save(self._path("ids", split, number), compress=False, **arrays)

    def load_ids(self, split: str, number: int, *names: str) -> list[np.ndarray]:
        """Arrays that `ids` made of a block: source, target, lengths [examples, 2], …"""
        with np.load(self._path("ids", split, number)) as arrays:
            return [arrays[name] for name in names]

    @functools.cached_property
    def counts(self) -> dict[str, list[int]]:
        """Split -> the number of examples of each block."""
        return {
            split: [len(self.load_ids(*block, "lengths")[0]) for block in self.blocks(split)]
            for split in self.pair.files
        }

    # Shards

    def shards(self) -> Iterator[Piece]:
        """Pieces: the shards."""
        for split, paths in self.shard_paths().items():
            bounds = shard_bounds(sum(self.counts[split]), len(paths))
            for path, start, end in zip(paths, bounds, bounds[1:], strict=False):
                make = functools.partial(self._write_shard, path, split, start, end)
                yield Piece(path, make, end - start)

    def shard_paths(self) -> dict[str, list[Path]]:
        """Split -> its shards."""
        directory, found = self.work.directory / "shards", {}
        for split, counts in self.counts.items():
            count = -(-sum(counts) // self.work.params.shard_size)
            names = [f"{self.pair.name}-{i:05d}-of-{count:05d}.records" for i in range(count)]
            found[split] = [directory / split / name for name in names]
        return found

    def _write_shard(self, path, split, start, end, progress):
        with new_file(path) as partial:
            write_records(partial, self._examples(split, start, end))

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

    def held_targets_in_train(self) -> np.ndarray:
        """The hashes of targets of dev and test of any pair that are in this pair's train."""
        numbers = self._of_blocks("held_targets", "train")
        return self._held_targets[np.unique(np.concatenate([*numbers, np.empty(0, np.int64)]))]

    def _of_blocks(self, name: str, *splits: str) -> list[np.ndarray]:
        """An array of `ids` of each block."""
        return [self.load_ids(*block, name)[0] for block in self.blocks(*splits)]

    def summary(self, targets_in_train: np.ndarray) -> dict[str, int]:
        """The counts of the checks, by kind, from `held_targets_in_train` of all pairs with this
        target language."""
        in_train = np.isin(self.held_target_hashes(), targets_in_train)
        return {
            **self.left_out(),
            "targets_in_train": int(np.sum(in_train)),
            "targets_changed": int(sum(self._of_blocks("changed"))),
            "too_long": int(sum(np.sum(~fits) for fits in self._of_blocks("fits"))),
        }

    def _path(self, stage: str, split: str, number: int) -> Path:
        return self.work.directory / stage / split / self.pair.name / f"{number:06}"


def extended_dataset(params: PrepareParams) -> Dataset | None:
    """The dataset that is extended; None if nothing is extended, or a model. Raises ValueError:
    as `Dataset.load`."""
    directory = Path(params.extend)
    return Dataset.load(directory) if params.extend and (directory / FILE).exists() else None


def each_pair(work: Work) -> Iterator[PairWork]:
    """The work on each pair, in order."""
    return (PairWork(work, pair) for pair in work.pairs)


def held_targets(work: Work) -> Iterator[Piece]:
    """Pieces: for each target language the hashes of the targets of dev and test, sorted."""
    by_language: dict[str, list[PairWork]] = collections.defaultdict(list)
    for pair in each_pair(work):
        by_language[pair.pair.target].append(pair)

    def save(path, pairs, progress):
        _save(path, np.unique(np.concatenate([pair.held_target_hashes() for pair in pairs])))

    for language, pairs in by_language.items():
        path = held_targets_path(work, language)
        yield Piece(path, functools.partial(save, path, pairs))


def held_targets_path(work: Work, language: str) -> Path:
    """The file of `held_targets` of a language."""
    return work.directory / "held_out" / f"{language}.npy"


def _map(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def _save(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file, for np.load with a memory map."""
    file = io.BytesIO()
    np.save(file, array)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, file.getvalue())


def encode_lines(
    lines: Sequence[SentencePair],
    vocabularies: Sequence[Vocabulary],
    layout: LanguageTags,
    tags: tuple[int, int],
    longest: int | None,
) -> dict[str, np.ndarray]:
    """Encodes the kept lines of a block; examples with a side of over `longest` tokens are left
    out.

    Returns:
        source, target: int32, the ids of all examples, one after the other.
        lengths, table, ratios: int32 [examples, 2]; int64 [cells, 5] and [bins], of all lines (see
            data.lengths).
        fits: bool [lines], whether a line is an example.
    """
    texts = [[getattr(line, side) for line in lines] for side in SIDES]
    encoded = [v.encode(side) for v, side in zip(vocabularies, texts, strict=True)]
    examples = [layout.example(tags, *pieces) for pieces in zip(*encoded, strict=True)]
    lengths = np.array([list(map(len, e)) for e in examples], np.int32).reshape(-1, 2)
    fits = np.ones(len(lines), bool)
    if longest is not None:
        fits = lengths.max(axis=1, initial=0) <= longest
    chosen = np.flatnonzero(fits)
    return {
        **{
            side: np.fromiter(
                itertools.chain.from_iterable(examples[j][i] for j in chosen), np.int32
            )
            for i, side in enumerate(SIDES)
        },
        "lengths": lengths[fits],
        "table": tabulate(lengths),
        "ratios": count_ratios(lengths),
        "fits": fits,
    }


def count_changed(vocabulary: Vocabulary, texts: Sequence[str]) -> int:
    """The number of texts that change when encoded and decoded: a model cannot write them.

    Changes by `nfc` do not count: they change only how the same characters are coded.
    """
    restored = vocabulary.decode(vocabulary.encode(texts))
    both = zip(normalize(texts), normalize(restored), strict=True)
    return sum(text != written for text, written in both)
