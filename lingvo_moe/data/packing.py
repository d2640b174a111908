"""Packing sentence pairs into rows of fixed shape.  B rows, L source length, T target length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.records import Example
from lingvo_moe.data.vocabulary import BOS, PAD
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system.batching import rounded_up


class Shape(NamedTuple):
    """The shape of a batch."""

    rows: int  # B
    # source_length, target_length: L and T, tokens
    source_length: int
    target_length: int

    def has_room(self, example: Example) -> bool:
        """Whether the example fits an empty row; an example without a target does not."""
        source, target = example[:2]
        return len(source) <= self.source_length and 0 < len(target) <= self.target_length


# The examples of a row, with the indices of their pairs.
Row = list[tuple[Example, int]]


def pack(examples: Iterable[tuple[Example, int]], shape: Shape) -> Iterator[NestedMap]:
    """Batches of examples and the indices of their pairs, in order; see `batch_of`.

    Each example goes to the first row with room on both sides (first-fit), and begins a batch if
    there is none. Examples that do not fit an empty row are left out.
    """
    rows: list[Row] = []
    room = np.zeros([2, 0], np.int64)  # an array, as a batch may have thousands of rows
    for example, pair in filter(lambda one: shape.has_room(one[0]), examples):
        sizes = len(example.source), len(example.target)
        fits = (room[0] >= sizes[0]) & (room[1] >= sizes[1])
        if not fits.any():
            if rows:
                yield batch_of(rows, shape)
            rows = [[] for _ in range(shape.rows)]
            room = np.full([shape.rows, 2], shape[1:]).T.copy()
            fits = room[0] > 0
        row = int(np.argmax(fits))
        rows[row].append((example, pair))
        room[:, row] -= sizes
    if rows:
        yield batch_of(rows, shape)


class Waiting(NamedTuple):
    """An example that waits for a place."""

    example: Example  # the sentence pair
    pair_index: int  # of its language pair
    origin: tuple[int, int]  # two numbers by which the caller finds the example again


class Pool:
    """Packs rows from W waiting examples.

    A row begins with the example that has waited longest, so no example waits forever. Then the
    largest example that fits is added, until none fits.
    """

    def __init__(self, draw: Callable[[], Waiting], size: int, row: tuple[int, int]):
        """An empty pool of W places for rows of (L, T); `draw` returns the next example, which
        fits."""
        self._draw, self._size, self._row = draw, size, row
        self._waiting: list[Waiting] = []
        self._lengths = np.zeros([2, size], np.int64)
        self._sizes = np.zeros(size)  # shares of a row, summed over both sides
        self._origins, self._ages = np.full([size, 2], -1), np.full(size, -1)
        self._drawn = 0

    def state(self) -> np.ndarray:
        """int64 [W, 3]: origin and age of each example; -1 before the first batch."""
        return np.column_stack([self._origins, self._ages])

    def restore(self, waiting: Sequence[Waiting], ages: np.ndarray) -> None:
        """Replaces the examples, in the order of a `state`."""
        self._waiting, self._ages = [], np.full(self._size, -1)
        self._origins = np.full([self._size, 2], -1)
        for slot, one in enumerate(waiting):
            self._put(slot, one)
        self._ages[: len(ages)] = ages
        self._drawn = int(self._ages.max()) + 1

    def fill(self, rows: int) -> list[Row]:
        """Packs the next rows."""
        while len(self._waiting) < self._size:
            self._put(len(self._waiting), self._draw())
        return [self._fill_row() for _ in range(rows)]

    def _fill_row(self) -> Row:
        row: Row = []
        (sources, targets), (source_room, target_room) = self._lengths, self._row
        slot = int(self._ages.argmin())
        while True:
            one = self._waiting[slot]
            row.append((one.example, one.pair_index))
            source_room -= int(sources[slot])
            target_room -= int(targets[slot])
            self._put(slot, self._draw())
            fits = (sources <= source_room) & (targets <= target_room)
            slot = int((fits * self._sizes).argmax())
            if not fits[slot]:
                return row

    def _put(self, slot, one):
        lengths = len(one.example.source), len(one.example.target)
        self._waiting[slot : slot + 1] = [one]
        self._lengths[:, slot] = lengths
        self._sizes[slot] = lengths[0] / self._row[0] + lengths[1] / self._row[1]
        self._origins[slot], self._ages[slot] = one.origin, self._drawn
        self._drawn += 1


def batch_of(rows: Sequence[Row], shape: Shape) -> NestedMap:
    """A batch of int32 arrays, from the examples of each row, which must fit. Returns source_ids,
    source_segment_ids, source_pair_ids [B, L]; target_inputs (shifted right, BOS first),
    target_ids, target_segment_ids, target_pair_ids [B, T]. Segments count from 1 in each row; 0 is
    padding."""
    placed = [one for row in rows for one in row]
    pairs = np.array([pair for _, pair in placed], np.int32)
    counts = np.array([len(row) for row in rows], np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)  # of its row, for each example
    segments = (np.arange(len(placed)) - first + 1).astype(np.int32)
    batch = NestedMap()
    for side, length in (("source", shape.source_length), ("target", shape.target_length)):
        ids = [getattr(example, side) for example, _ in placed]
        lengths = np.array([len(one) for one in ids], np.int64)
        starts = np.cumsum(lengths) - lengths
        begin = np.repeat(np.arange(len(rows)) * length, counts) + starts
        begin -= starts[first] if len(placed) else 0
        positions = np.repeat(begin - starts, lengths) + np.arange(lengths.sum())
        flat = np.concatenate([np.zeros(0, np.int32), *ids])
        values = {"ids": flat, "segment_ids": segments.repeat(lengths)}
        values["pair_ids"] = pairs.repeat(lengths)
        if side == "target":
            values["inputs"] = np.roll(flat, 1)
            values["inputs"][starts] = BOS
        for name, value in values.items():
            array = np.zeros(shape.rows * length, np.int32)
            array[positions] = value
            batch[f"{side}_{name}"] = array.reshape(shape.rows, length)
    return batch


def padded(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """One batch of at least one sentence: ids int32 [B, L], padded with PAD; lengths int32 [B]."""
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    ids = np.full((len(sentences), rounded_up(int(lengths.max()))), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lengths
