"""Training input: pairs sampled by temperature, packed into batches, resumable at any batch.

P language pairs.
"""

import dataclasses
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lingvo_moe.core.fields import Params, PositiveFloat, PositiveInt
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.patterns import Factors, check_found, first_match
from lingvo_moe.data.dataset import FILE, Dataset, Example, PairInfo, shard_bounds
from lingvo_moe.data.packing import Packer

_CHUNK = 4096  # pairs drawn at once
_LOOK_AHEAD = 32  # examples that may wait for the next batch while shorter ones fill this one
_MOST_SKIPPED = 100_000
_FACTORS = "input.pair_factors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputParams(Params):
    """The shape of batches, and the sampling of pairs.

    Attributes:
        batch_size: rows.
        source_length, target_length: tokens a row; several sentence pairs share a row.
        temperature: T; a pair is drawn with probability ∝ examples^(1/T).
        pairs: names of the pairs to train on; () for all.
        pair_factors: (regular expression, factor), …: the first that is found in a pair's name
            multiplies its probability, before all are scaled to sum to 1.
    """

    batch_size: PositiveInt = 32
    source_length: PositiveInt = 64
    target_length: PositiveInt = 64
    temperature: PositiveFloat = 5.0
    pairs: tuple[str, ...] = ()
    pair_factors: Factors = ()

    def __post_init__(self):
        super().__post_init__()
        repeated = [pair for pair, count in Counter(self.pairs).items() if count > 1]
        if repeated:
            raise ValueError(f"input.pairs must name a pair once; repeated: {', '.join(repeated)}.")


def pairs_with_text(dataset: Dataset, names: Sequence[str] = ()) -> tuple[PairInfo, ...]:
    """The pairs to train on.

    Args:
        dataset: prepared data.
        names: of pairs; () for all that have training examples.

    Raises:
        ValueError: an unknown name, or there are no training examples for one.
    """
    named = [dataset.pair(name) for name in names]
    found = tuple(pair for pair in named or dataset.pairs if pair.examples.get("train"))
    if not found or 0 < len(found) < len(named):
        empty = ", ".join(pair.name for pair in named if pair not in found)
        raise ValueError(
            f"There are no training examples for {empty or 'any pair'} in {dataset.directory}."
            " Prepare text for them, or leave them out of the pairs."
        )
    return found


class TrainInput:
    """An endless stream of packed batches.

    All random choices depend on the seed and a few counters, the state. So a restored input gives
    the same batches as an uninterrupted one.

    Attributes:
        pairs: the pairs to draw from.
        probabilities: float64 [P], of drawing each of them.
        skipped: number of drawn examples that were longer than a row.
    """

    def __init__(self, dataset: Dataset, params: InputParams, seed: int):
        """Opens the dataset's train split; one shard of each pair is in memory.

        Raises:
            ValueError: a pair that the dataset does not know or has no training examples of; or
                pair_factors that fit no pair, or leave out all.
        """
        self._params, self._seed = params, seed
        self.pairs = pairs_with_text(dataset, params.pairs)
        self._streams = [_PairStream(dataset, pair, seed) for pair in self.pairs]
        check_found(
            [p for p, _ in params.pair_factors], [pair.name for pair in dataset.pairs], _FACTORS
        )
        factors = np.array(
            [first_match(params.pair_factors, pair.name, 1.0) for pair in self.pairs]
        )
        if not factors.any():
            raise ValueError(f"{_FACTORS}={params.pair_factors} leaves out all pairs; change one.")
        weights = factors * sampling_probabilities(
            [pair.examples["train"] for pair in self.pairs], params.temperature
        )
        self.probabilities = weights / weights.sum()
        self._draws = 0
        self._counters = np.zeros(len(self.pairs), np.int64)
        self._waiting: list[tuple[int, int]] = []  # (stream, its counter)
        self._drawn_chunk: tuple[int, np.ndarray] | None = None
        self.skipped, self._skipped_in_a_row = 0, 0

    def next_batch(self) -> NestedMap:
        """The next batch; see `Packer.batch`.

        Raises:
            ValueError: thousands of examples in a row are too long.
        """
        p = self._params
        packer = Packer(p.batch_size, p.source_length, p.target_length)
        old, self._waiting = self._waiting, []
        for stream, counter in old:
            self._place(packer, stream, counter)
        while len(self._waiting) < _LOOK_AHEAD:
            self._place(packer, *self._draw())
        return packer.batch()

    def peek(self, examples: int) -> list[NestedMap]:
        """The next batches with at least this number of examples; the stream does not advance.

        Raises:
            ValueError: as `next_batch`.
        """
        state, skipped, batches = self.state(), self.skipped, []
        while examples > 0:
            batches.append(self.next_batch())
            examples -= int(batches[-1].target_segment_ids.max(axis=1).sum())
        self.restore(state)
        self.skipped, self._skipped_in_a_row = skipped, 0
        return batches

    def state(self) -> dict[str, np.ndarray]:
        """The position of the stream: a few counters."""
        return {
            "draws": np.asarray(self._draws, np.int64),
            "counters": self._counters.copy(),
            "waiting": np.array(self._waiting, np.int64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state.

        Raises:
            ValueError: the state belongs to other pairs.
        """
        if len(state["counters"]) != len(self._streams):
            raise ValueError(
                f"The checkpoint's input has {len(state['counters'])} pairs, this one "
                f"{len(self._streams)}; train with the same data and input.pairs."
            )
        self._draws = int(state["draws"])
        self._counters = np.array(state["counters"], np.int64)
        self._waiting = [(int(stream), int(counter)) for stream, counter in state["waiting"]]

    def _draw(self) -> tuple[int, int]:
        chunk, offset = divmod(self._draws, _CHUNK)
        if self._drawn_chunk is None or self._drawn_chunk[0] != chunk:
            rng = np.random.default_rng([self._seed, 0, chunk])
            draws = rng.choice(len(self._streams), _CHUNK, p=self.probabilities)
            self._drawn_chunk = chunk, draws
        stream = int(self._drawn_chunk[1][offset])
        counter = int(self._counters[stream])
        self._draws += 1
        self._counters[stream] += 1
        return stream, counter

    def _place(self, packer, stream, counter):
        example = self._streams[stream].example(counter)
        if not packer.fits_empty_row(example):
            self.skipped += 1
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row > _MOST_SKIPPED and packer.empty:
                raise ValueError(
                    f"{self._skipped_in_a_row} examples in a row do not fit rows of "
                    f"{self._params.source_length} and {self._params.target_length} tokens; raise "
                    f"input.source_length and input.target_length."
                )
        elif packer.add(example, self._streams[stream].pair.index):
            self._skipped_in_a_row = 0
        else:
            self._waiting.append((stream, counter))


def sampling_probabilities(sizes: list[int], temperature: float) -> np.ndarray:
    """float64 [P], p ∝ size^(1/T): T 1 samples by size, a large T evenly (Arivazhagan 2019)."""
    # Sizes relative to the largest, because the power of a size could overflow.
    weights = np.power(np.array(sizes, np.float64) / max(sizes), 1.0 / temperature)
    return weights / weights.sum()


class _PairStream:
    """The training examples of one pair, shuffled again in each epoch."""

    def __init__(self, dataset: Dataset, pair: PairInfo, seed: int):
        self.pair = pair
        self._dataset, self._seed = dataset, seed
        self._total = pair.examples["train"]
        self._shards = pair.shards["train"]
        self._sizes = np.diff(shard_bounds(self._total, len(self._shards)))
        self._epoch, self._shard = -1, -1

    def example(self, number: int) -> Example:
        """The number-th example of an endless sequence of epochs."""
        epoch, offset = divmod(number, self._total)
        if epoch != self._epoch:
            self._order = self._rng(epoch).permutation(len(self._shards))
            self._starts = np.concatenate([[0], np.cumsum(self._sizes[self._order])])
            self._epoch, self._permuted = epoch, -1
        place = int(np.searchsorted(self._starts, offset, side="right")) - 1
        shard = int(self._order[place])
        if shard != self._shard:
            self._examples = self._read(shard)
            self._shard = shard
        if shard != self._permuted:
            self._permutation = self._rng(epoch, shard).permutation(self._sizes[shard])
            self._permuted = shard
        return self._examples[self._permutation[offset - self._starts[place]]]

    def _read(self, shard):
        name = self._shards[shard]
        examples = self._dataset.read_shard(name)
        if len(examples) != self._sizes[shard]:
            raise OSError(
                f"Shard {self._dataset.directory / name} has {len(examples)} examples where "
                f"{FILE} implies {self._sizes[shard]}; prepare the data again."
            )
        return examples

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, 1, self.pair.index, *key])


def eval_batches(dataset: Dataset, split: str, params: InputParams) -> Iterator[NestedMap]:
    """Every example of a split that fits a row, once, in order, in batches of the train shape."""
    pairs = [dataset.pair(name) for name in params.pairs] or dataset.pairs
    return pack(
        ((example, p.index) for p in pairs for example in dataset.examples(split, p.name)), params
    )


def pack(examples: Iterable[tuple[Example, int]], params: InputParams) -> Iterator[NestedMap]:
    """Batches of the train shape from examples and the indices of their pairs, in order.

    Examples that do not fit a row are left out.
    """

    def new_packer():
        return Packer(params.batch_size, params.source_length, params.target_length)

    packer = new_packer()
    for example, pair in examples:
        if packer.fits_empty_row(example) and not packer.add(example, pair):
            yield packer.batch()
            packer = new_packer()
            packer.add(example, pair)
    if not packer.empty:
        yield packer.batch()


class Prefetcher:
    """Makes batches in advance in a background thread; `state` is that of the last batch taken."""

    def __init__(self, source: TrainInput, ahead: int = 4):
        """Wraps an input; after the first `next_batch` only the thread uses it."""
        self._source = source
        self._queue: queue.Queue = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = source.state()

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *exception) -> None:
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=0.01)
            while not self._queue.empty():
                self._queue.get_nowait()

    def next_batch(self) -> NestedMap:
        """The next batch. An error in the thread is raised here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        batch, state = self._queue.get()
        if isinstance(batch, Exception):
            self._queue.put((batch, state))  # later calls raise the same error
            raise batch
        self._state = state
        return batch

    def state(self) -> dict[str, np.ndarray]:
        """The state after the last batch taken; batches made in advance do not count."""
        return self._state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state; only before the first batch is taken."""
        self._source.restore(state)
        self._state = self._source.state()

    def _run(self):
        while not self._stop.is_set():
            try:
                batch, state = self._source.next_batch(), self._source.state()
            except Exception as error:
                self._queue.put((error, None))
                return
            self._queue.put((batch, state))
