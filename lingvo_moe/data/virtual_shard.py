"""Virtual shards: fixed parts of every batch, each with its own random draws and its own state.

A batch of B rows has V virtual shards of B / V rows. Each is packed without the others. So a
process packs only those that its devices read, and batches do not depend on the number of
processes.

P streams: the training examples of each pair in each corpus. W examples wait for a place in a row.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from lingvo_moe.data.mixture import Stream
from lingvo_moe.data.modifiers.base import Modifier
from lingvo_moe.data.packing import Pool, Row, Shape, Waiting
from lingvo_moe.data.shuffle import hash_numbers, permuted, to_shares

LOOK_AHEAD = 256  # W
MOST_SKIPPED = 100_000
_CHUNK = 64  # draws at once
_DRAWS, _ORDER, _CHANGE = range(3)  # part of the seed: each use has other random numbers


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the examples of P streams, each shuffled again in every epoch."""

    streams: Sequence[Stream]  # P streams
    seed: int  # seed of the order and of changes
    row: Shape  # the shape of rows; an example that a change makes too long is not changed
    modifiers: Sequence[Modifier] = ()  # change some of the examples, in this order

    def read(self, streams: np.ndarray, positions: np.ndarray) -> list[Waiting]:
        """The examples at positions, int64 [N], of streams, int64 [N]. Positions count through all
        epochs: of n examples epoch e has e·n to e·n + n - 1. Raises OSError: as `Dataset.example`.
        """
        sizes, names = self._sizes_and_names
        epochs, offsets = np.divmod(positions, sizes[streams])
        keys = hash_numbers(self.seed, _ORDER, names[streams], epochs)
        indices = permuted(offsets, sizes[streams], keys).tolist()
        origins = list(zip(streams.tolist(), positions.tolist(), strict=True))
        examples = [
            self.streams[stream].example(index)
            for (stream, _), index in zip(origins, indices, strict=True)
        ]
        for number, modifier in enumerate(self.modifiers):
            keys = hash_numbers(self.seed, _CHANGE, number, names[streams], positions)
            for i in np.flatnonzero(to_shares(keys) < modifier.share).tolist():
                of = self.streams[origins[i][0]]
                changed = of.change(examples[i], indices[i], modifier, int(keys[i]))
                if self.row.has_room(of.with_tag(changed)):
                    examples[i] = changed
        return [
            Waiting(of.with_tag(example), of.index, origin)
            for example, origin in zip(examples, origins, strict=True)
            if (of := self.streams[origin[0]])
        ]

    @functools.cached_property
    def _sizes_and_names(self):
        """The size of each stream, and its unique number: int64 [P] each."""
        sizes = [stream.size for stream in self.streams]
        names = [(stream.number << 32) + stream.index for stream in self.streams]
        return np.array(sizes, np.int64), np.array(names, np.int64)


class VirtualShard:
    """Draws examples without end, and packs its rows of every batch.

    All random choices depend only on the seed, the shard's number and the state, a few counters.
    The shard takes every V-th example of each stream's order.

    Attributes:
        skipped: number of drawn examples that were longer than a row.
    """

    def __init__(
        self, number: int, shards: int, reader: Reader, shape: Shape, probabilities: np.ndarray
    ):
        """Begins at the first batch of shard `number` of V, whose rows have this shape; each stream
        is drawn with its probability, float64 [P]."""
        self._number, self._shards, self._reader, self._shape = number, shards, reader, shape
        bounds = np.cumsum(probabilities)
        self._bounds = bounds / bounds[-1]
        self._draws = 0  # number of draws before the chunk
        self._counters = np.zeros(len(reader.streams), np.int64)  # the same for each stream
        self._drawn = np.zeros(0, np.int64)  # the streams of the chunk
        self._chunk: list[Waiting] = []  # their examples
        self._used = 0  # number of these already used
        self._pool = Pool(self._draw, LOOK_AHEAD, shape[1:])
        self.skipped, self._skipped_in_a_row = 0, 0

    def next_rows(self) -> list[Row]:
        """The shard's rows of the next batch. Raises ValueError: more than MOST_SKIPPED examples
        in succession do not fit a row."""
        return self._pool.fill(self._shape.rows)

    def state(self) -> dict[str, np.ndarray]:
        """The position, int64: draws [], counters [P], waiting [W, 3] (stream, position, age)."""
        used = np.bincount(self._drawn[: self._used], minlength=len(self._counters))
        return {
            "draws": np.asarray(self._draws + self._used, np.int64),
            "counters": self._counters + used,
            "waiting": self._pool.state(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state."""
        self._draws, self._counters = int(state["draws"]), np.array(state["counters"], np.int64)
        self._drawn, self._chunk, self._used = self._drawn[:0], [], 0
        waiting = state["waiting"][state["waiting"][:, 0] >= 0]
        self._pool.restore(self._reader.read(waiting[:, 0], waiting[:, 1]), waiting[:, 2])

    def _draw(self) -> Waiting:
        """The next example that fits an empty row."""
        while True:
            if self._used == len(self._chunk):
                self._draw_chunk()
            one = self._chunk[self._used]
            self._used += 1
            if self._shape.has_room(one.example):
                self._skipped_in_a_row = 0
                return one
            self.skipped += 1
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row > MOST_SKIPPED:
                raise ValueError(
                    f"{self._skipped_in_a_row} examples in succession do not fit rows of "
                    f"{self._shape.source_length} and {self._shape.target_length} tokens."
                )

    def _draw_chunk(self):
        """Draws streams up to the next multiple of the chunk's size, and reads their examples."""
        draws = self._draws + self._used
        counters = self._counters + np.bincount(self._drawn, minlength=len(self._counters))
        chunk, offset = divmod(draws, _CHUNK)
        rng = np.random.default_rng([self._reader.seed, _DRAWS, self._number, chunk])
        drawn = np.searchsorted(self._bounds, rng.random(_CHUNK)[offset:], side="right")
        positions = (counters[drawn] + _repeats(drawn)) * self._shards + self._number
        self._chunk = self._reader.read(drawn, positions)
        self._draws, self._counters, self._drawn, self._used = draws, counters, drawn, 0


def _repeats(numbers: np.ndarray) -> np.ndarray:
    """For each number, how often it occurred earlier in the array: int64 [N]."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    repeats = np.empty(len(numbers), np.int64)
    repeats[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return repeats
