"""Training input: pairs sampled by temperature, packed into batches, resumable at any batch.

P language pairs.
"""

import collections
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.config.fields import FROM_DATA, FromData, Params, PositiveFloat, PositiveInt
from lingvo_moe.config.patterns import Factors
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.mixture import MAIN, Corpus, Mixture
from lingvo_moe.data.modifiers.base import Modifier
from lingvo_moe.data.packing import Shape, batch_of, pack
from lingvo_moe.data.virtual_shard import Reader, VirtualShard
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputParams(Params):
    """The shape of batches, and the sampling of pairs.

    Attributes:
        batch_size: rows.
        source_length, target_length: tokens per row; several sentence pairs share a row.
        temperature: T; a pair is drawn with probability ∝ examples^(1/T).
        pairs: names of the pairs to train on; () for all.
        pair_factors: (regular expression, factor), …: the first that is found in a pair's name
            multiplies its probability, before all are scaled to sum to 1.
        virtual_shards: V, number of parts of a batch that are packed independently; it divides
            batch_size. If it is a multiple of the number of processes, each process packs only its
            own rows. None for the largest power of 2, up to 64, that gives each part a multiple of
            8 rows.
        corpora: further datasets that are mixed with the main dataset.
        modifiers: random changes of examples, such as copies, applied in order.
    """

    batch_size: PositiveInt | FromData = 32
    source_length: PositiveInt | FromData = 64
    target_length: PositiveInt | FromData = 64
    temperature: PositiveFloat = 5.0
    pairs: tuple[str, ...] = ()
    pair_factors: Factors = ()
    virtual_shards: PositiveInt | None = None
    corpora: tuple[Corpus, ...] = ()
    modifiers: tuple[Modifier, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size is not FROM_DATA and self.batch_size % self.num_virtual_shards:
            raise ValueError(
                f"input.virtual_shards={self.virtual_shards} must divide the batch_size."
            )
        names = [MAIN, *(corpus.name for corpus in self.corpora)]
        if len(set(names)) < len(names):
            raise ValueError(f"input.corpora must have names of their own, got {names}.")

    def mixture(self, dataset: Dataset) -> Mixture:
        """The mixture of examples, with this main dataset; raises as `Mixture.of`."""
        return Mixture.of(dataset, self.corpora, self.pairs, self.temperature, self.pair_factors)

    def with_absolute_paths(self) -> "InputParams":
        """The same input, whose corpora are found from every working directory."""
        here = [dataclasses.replace(c, data=os.path.abspath(c.data)) for c in self.corpora]
        return dataclasses.replace(self, corpora=tuple(here))

    def with_corpora_at(self, corpora: Sequence[Corpus]) -> "InputParams":
        """The same input, with the directories that corpora of the same names have."""
        places = {corpus.name: corpus.data for corpus in corpora}
        moved = [dataclasses.replace(c, data=places.get(c.name, c.data)) for c in self.corpora]
        return dataclasses.replace(self, corpora=tuple(moved))

    @property
    def shape(self) -> Shape:
        """The shape of batches."""
        return Shape(self.batch_size, self.source_length, self.target_length)

    @property
    def num_virtual_shards(self) -> int:
        """V."""
        return self.virtual_shards or max(1, math.gcd(self.batch_size, 64 * 8) // 8)


class Part(NamedTuple):
    """The part of every batch that a process packs: some of its V virtual shards."""

    packed: np.ndarray  # bool [V], the virtual shards that the process's devices read
    # bool [V], the virtual shards whose state this process saves; no other process does
    saved: np.ndarray

    @staticmethod
    def of(rows: np.ndarray, process: int, shards: int) -> "Part":
        """The part of one process of those whose devices read `rows`, bool [processes, B]."""
        packed = rows.reshape(len(rows), shards, -1).max(axis=2)
        return Part(packed[process], packed[process] & (packed.argmax(axis=0) == process))

    def batch(self, rows: NestedMap) -> NestedMap:
        """The batch of this process, from the rows that it has packed; the other rows are 0."""
        if self.packed.all():
            return rows
        size = len(rows.target_ids) // np.count_nonzero(self.packed)
        mine = np.repeat(self.packed, size)
        batch = NestedMap()
        for name, value in rows.items():
            batch[name] = np.zeros([len(mine), value.shape[1]], value.dtype)
            batch[name][mine] = value
        return batch

    def state(self, shards: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """The part of `TrainInput.state` in virtual shards, from those that this process packs."""
        names = next(iter(shards.values()))
        if self.saved.all():
            return {name: np.stack([one[name] for one in shards.values()]) for name in names}
        saved = {v: shards[v] for v in np.flatnonzero(self.saved).tolist()}
        return {
            name: ProcessRows(
                (len(self.packed), *value.shape), {v: one[name] for v, one in saved.items()}
            )
            for name, value in names.items()
        }


class TrainInput:
    """An endless stream of packed batches.

    All random choices depend only on the seed and a few counters, the state. So a restored input
    gives the same batches as an uninterrupted one, also in another number of processes.

    Attributes:
        dataset, params, seed, part: those of the constructor; all virtual shards if part was None.
        mixture: the streams and their probabilities.
    """

    def __init__(self, dataset: Dataset, params: InputParams, seed: int, part: Part | None = None):
        """Opens the dataset's train split; `part` is what this process packs, None for all. Raises
        ValueError: as `Mixture.of`."""
        shards = params.num_virtual_shards
        self.dataset, self.params, self.seed = dataset, params, seed
        self.part = part or Part(*np.ones([2, shards], bool))
        self.mixture = params.mixture(dataset)
        self._shape = params.shape
        self._reader = Reader(self.mixture.streams, seed, self._shape, params.modifiers)
        rows = self._shape._replace(rows=params.batch_size // shards)
        self._shards = {
            v: VirtualShard(v, shards, self._reader, rows, self.mixture.probabilities)
            for v in np.flatnonzero(self.part.packed).tolist()
        }
        self._batches = 0

    @property
    def skipped(self) -> int:
        """Number of drawn examples that were longer than a row."""
        return sum(shard.skipped for shard in self._shards.values())

    def next_batch(self) -> NestedMap:
        """The next batch; see `packing.batch_of`. Rows that this process does not pack are 0.
        Raises ValueError: more than MOST_SKIPPED examples in succession do not fit a row; OSError:
        a shard of the dataset is missing or damaged."""
        rows = [row for shard in self._shards.values() for row in shard.next_rows()]
        self._batches += 1
        return self.part.batch(batch_of(rows, self._shape._replace(rows=len(rows))))

    def check(self) -> None:
        """Raises the errors of `next_batch`, if there is no batch; the stream does not advance."""
        TrainInput(self.dataset, self.params, self.seed, self.part).next_batch()

    def state(self) -> dict[str, Any]:
        """The position of the stream: batches []; draws [V], counters [V, P] and waiting [V, W, 3],
        arrays of int64, or `ProcessRows` of those if other processes save some of the virtual
        shards."""
        shards = {v: shard.state() for v, shard in self._shards.items()}
        return {"batches": np.asarray(self._batches, np.int64), **self.part.state(shards)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from the state of all virtual shards. Raises ValueError: the state has other
        pairs or virtual shards."""
        shape = np.shape(state["counters"])
        ours = len(self.part.packed), len(self.mixture.streams)
        if shape != ours:
            raise ValueError(
                f"The checkpoint's input has {shape[1]} pairs and {shape[0]} virtual shards, this "
                f"one {ours[1]} and {ours[0]}; train with the same data and the same input.*."
            )
        names = [name for name in state if name != "batches"]
        self._batches = int(state["batches"])
        for v, shard in self._shards.items():
            shard.restore({name: np.asarray(state[name][v]) for name in names})


class ProcessRows:
    """The rows of an int64 array that one process holds; checkpoints treat them as shards of a
    jax.Array."""

    is_fully_addressable, dtype = False, np.dtype(np.int64)

    def __init__(self, shape: tuple[int, ...], rows: Mapping[int, np.ndarray]):
        """shape: of the whole array; rows: number -> row."""
        self.shape = shape
        self.addressable_shards = [  # as jax.Shard
            SimpleNamespace(index=(slice(number, number + 1),), data=row[None], replica_id=0)
            for number, row in rows.items()
        ]


def eval_batches(dataset: Dataset, split: str, params: InputParams) -> Iterator[NestedMap]:
    """Every example of a split that fits a row, once, in order, in batches of the train shape."""
    pairs = [dataset.pair(name) for name in params.pairs] or dataset.pairs
    examples = ((one, p.index) for p in pairs for one in dataset.examples(split, p.name))
    return pack(examples, params.shape)


class Prefetcher:
    """Makes batches in advance in a background thread; `state` is that of the last batch taken."""

    def __init__(self, source: TrainInput, ahead: int = 4):
        """Wraps an input; after the first `next_batch` only the thread uses it."""
        self._source, self._ahead, self._state = source, ahead, source.state()
        self._thread = ThreadPoolExecutor(1)
        self._made: collections.deque[Future] = collections.deque()

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *exception) -> None:
        self._thread.shutdown(cancel_futures=True)

    def next_batch(self) -> NestedMap:
        """The next batch. An error in the thread is raised here, and again by later calls."""
        while len(self._made) < self._ahead:
            self._made.append(self._thread.submit(self._make))
        batch, self._state = self._made[0].result()
        self._made.popleft()
        return batch

    def state(self) -> dict[str, Any]:
        """The state after the last batch taken; batches made in advance do not count."""
        return self._state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state; only before the first batch is taken."""
        self._source.restore(state)
        self._state = self._source.state()

    def _make(self):
        return self._source.next_batch(), self._source.state()
