import dataclasses
import itertools

import numpy as np
import pytest

from lingvo_moe.data import virtual_shard
from lingvo_moe.data.dataset import Dataset, Example, PairInfo
from lingvo_moe.data.mixture import sampling_probabilities
from lingvo_moe.data.packing import Shape
from lingvo_moe.data.pipeline import (
    InputParams,
    Part,
    Prefetcher,
    TrainInput,
    eval_batches,
)
from lingvo_moe.data.records import write_records
from lingvo_moe.data.virtual_shard import Reader

PARAMS = InputParams(batch_size=3, source_length=12, target_length=10, virtual_shards=3)


def _make(directory, sizes, *, split="train", shards=1, length=4):
    """A dataset whose example i of pair p has source [4, 1000 p + i, …] and target of its own."""
    pairs = []
    for index, size in enumerate(sizes):
        name = f"x{index}-en"
        rng = np.random.default_rng(index)
        examples = []
        for i in range(size):
            body = [1000 * index + i + 10] * int(rng.integers(1, length + 1))
            target = body[:1] * int(rng.integers(1, length + 1))
            examples.append(Example(np.array([4, *body, 2]), np.array([*target, 2])))
        count = min(shards, size)
        bounds = [s * size // count for s in range(count + 1)]
        parts = {
            f"{split}/{name}-{s}": examples[start:end]
            for s, (start, end) in enumerate(itertools.pairwise(bounds))
        }
        for shard, part in parts.items():
            write_records(directory / shard, part)
        sizes = {shard: len(part) for shard, part in parts.items()}
        pairs.append(PairInfo(name, f"x{index}", "en", index, {split: size}, {split: sizes}))
    return Dataset(directory, tuple(pairs), {"en": 4}, {}, {})


def _unpack(batch):
    """(pair, source ids, target inputs, target ids) of each segment."""
    for row in range(len(batch.source_ids)):
        for segment in range(1, batch.target_segment_ids[row].max() + 1):
            source = batch.source_segment_ids[row] == segment
            target = batch.target_segment_ids[row] == segment
            (pair,) = set(batch.target_pair_ids[row, target].tolist())
            yield (
                pair,
                batch.source_ids[row, source].tolist(),
                batch.target_inputs[row, target].tolist(),
                batch.target_ids[row, target].tolist(),
            )


def _equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def _of_dataset(dataset, split):
    return sorted(
        (pair.index, e.source.tolist(), [1, *e.target[:-1].tolist()], e.target.tolist())
        for pair in dataset.pairs
        for e in dataset.examples(split, pair.name)
    )


def test_temperature():
    # 32^(1/5) = 2; T = 1 is by size; a large T is even.
    assert np.allclose(sampling_probabilities([1, 32], 5.0), [1 / 3, 2 / 3])
    assert np.allclose(sampling_probabilities([1, 32], 1.0), [1 / 33, 32 / 33])
    assert np.allclose(sampling_probabilities([1, 32], 1e9), [0.5, 0.5])


def test_pairs_come_as_often_as_their_probability(tmp_path):
    """Sizes 1, 32, 243 to the power 1/5 are 1, 2, 3; chi-square of 2 degrees, p = 0.001: 13.8."""
    batches = TrainInput(_make(tmp_path, [1, 32, 243]), PARAMS, seed=1)
    packed = [batches.next_batch() for _ in range(1500)]
    pairs = np.concatenate([b.target_pair_ids[b.target_inputs == 1] for b in packed])  # at each BOS
    drawn = batches.state()["counters"].sum(axis=0)
    expected = drawn.sum() * np.array([1, 2, 3]) / 6
    assert drawn.sum() > 7000
    assert ((drawn - expected) ** 2 / expected).sum() < 13.8
    # All that is drawn is packed, apart from the 768 that wait.
    assert drawn.sum() - len(pairs) == 3 * 256
    assert np.all(np.bincount(pairs) >= drawn - 3 * 256)


def test_an_epoch_is_every_example_once_in_another_order(tmp_path):
    dataset = _make(tmp_path, [5, 20, 20], shards=3, length=1)
    row = Shape(1, 64, 64)
    reader = Reader(InputParams().mixture(dataset).streams, seed=1, row=row)

    def numbers(stream, positions):
        read = reader.read(np.full(len(positions), stream), np.array(positions))
        assert all(one.pair_index == stream for one in read)
        return [int(one.example.source[1]) - 1000 * stream - 10 for one in read]

    first, second = numbers(1, range(20)), numbers(1, range(20, 40))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second != list(range(20))
    assert numbers(2, range(20)) != first
    assert sorted(numbers(0, range(5, 10))) == list(range(5))
    # Shards of 6, 7, 7 examples are mixed: the whole pair is shuffled.
    assert (np.diff(np.repeat([0, 1, 2], [6, 7, 7])[first]) != 0).sum() > 5


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_pack_their_own_rows_of_the_same_batches(tmp_path, processes):
    dataset = _make(tmp_path, [7, 40])
    params = InputParams(batch_size=8, source_length=12, target_length=10, virtual_shards=8)
    whole = TrainInput(dataset, params, seed=5)
    rows = np.repeat(np.eye(processes, dtype=bool), 8 // processes, axis=1)

    def parts():
        return [TrainInput(dataset, params, 5, Part.of(rows, i, 8)) for i in range(processes)]

    batches = parts()
    for step in range(12):
        expected, found = whole.next_batch(), [one.next_batch() for one in batches]
        for name, value in expected.items():
            np.testing.assert_array_equal(sum(one[name] for one in found), value)
        for part, mine in zip(found, rows, strict=True):
            assert not part.target_ids[~mine].any()
        if step == 5:  # restored from what all saved, in as many processes
            state = _joined([one.state() for one in batches])
            assert _equal(state, whole.state())
            batches = parts()
            for one in batches:
                one.restore(state)
    alone = TrainInput(dataset, params, seed=5)
    alone.restore(_joined([one.state() for one in batches]))
    assert _equal(alone.next_batch(), whole.next_batch())


def _joined(states):
    """The arrays of which each process holds rows; every row in one process."""
    joined = {}
    for name in states[0]:
        array = np.full(states[0][name].shape, -7, np.int64)
        if name == "batches":
            joined[name] = states[0][name]
            continue
        for state in states:
            for shard in state[name].addressable_shards:
                assert np.all(array[shard.index] == -7)
                array[shard.index] = shard.data
        joined[name] = array
    assert not np.any(joined["draws"] == -7)
    return joined


@pytest.mark.parametrize("pairs", [(), ("x1-en",)])
def test_resuming_anywhere_gives_the_same_batches(tmp_path, pairs):
    dataset = _make(tmp_path, [1, 7, 40], shards=3)
    params = dataclasses.replace(PARAMS, pairs=pairs)
    whole = TrainInput(dataset, params, seed=5)
    states, batches = [], []
    for _ in range(40):
        states.append(whole.state())
        batches.append(whole.next_batch())
    for start, state in enumerate(states):
        resumed = TrainInput(dataset, params, seed=5)
        resumed.restore(state)
        for batch in batches[start : start + 3]:
            assert _equal(resumed.next_batch(), batch)


def test_the_default_number_of_virtual_shards():
    """A multiple of 8 rows each, at most 64 of them."""
    sizes = {1: 1, 4: 1, 8: 1, 16: 2, 24: 1, 32: 4, 34: 1, 512: 64, 32768: 64}
    assert {b: InputParams(batch_size=b).num_virtual_shards for b in sizes} == sizes


def test_state_of_other_pairs(tmp_path):
    dataset = _make(tmp_path, [5, 5])
    state = TrainInput(dataset, InputParams(), seed=1).state()
    one = InputParams(pairs=("x1-en",))
    with pytest.raises(ValueError, match="2 pairs"):
        TrainInput(dataset, one, seed=1).restore(state)


def test_rows_are_dense(tmp_path):
    # Sources of 3 to 32 tokens, targets of 2 to 31, alike on average.
    dataset = _make(tmp_path, [400], length=30)
    batches = TrainInput(dataset, InputParams(batch_size=32), seed=1)
    many = [batches.next_batch() for _ in range(20)]
    for side in ("source", "target"):
        assert np.mean([batch[f"{side}_segment_ids"] > 0 for batch in many]) > 0.93


def test_pair_factors(tmp_path):
    """1 : 1 : 2 by size; with factors 3 and 0.5 for the first and last 3 : 1 : 1."""
    dataset = _make(tmp_path, [10, 10, 20])

    def probabilities(*factors, pairs=()):
        params = InputParams(temperature=1.0, pairs=pairs, pair_factors=factors)
        mixture = TrainInput(dataset, params, seed=1).mixture
        return dict(zip([s.name for s in mixture.streams], mixture.probabilities, strict=True))

    everywhere = {"x0-en": 0.6, "x1-en": 0.2, "x2-en": 0.2}
    assert probabilities(("x0", 3.0), ("[02]-", 0.5)) == pytest.approx(everywhere)
    assert probabilities(("x0", 0.0)) == pytest.approx({"x1-en": 1 / 3, "x2-en": 2 / 3})
    assert probabilities(("x0", 3.0), pairs=("x2-en",)) == {"x2-en": 1.0}  # of a baseline
    with pytest.raises(ValueError, match="'de-'"):
        probabilities(("de-", 3.0))
    with pytest.raises(ValueError, match="leave out"):
        probabilities(("", 0.0))


def test_too_long_examples_are_passed_over(tmp_path):
    dataset = _make(tmp_path, [40])
    params = InputParams(batch_size=2, source_length=4, target_length=3)
    batches = TrainInput(dataset, params, seed=1)
    seen = [segment for _ in range(20) for segment in _unpack(batches.next_batch())]
    fitting = [s for s in _of_dataset(dataset, "train") if len(s[1]) <= 4 and len(s[3]) <= 3]
    assert 0 < len(fitting) < 40
    assert {s[1][1] for s in seen} == {s[1][1] for s in fitting}


def test_nothing_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(virtual_shard, "MOST_SKIPPED", 100)
    batches = TrainInput(_make(tmp_path, [4]), InputParams(source_length=2), seed=1)
    with pytest.raises(ValueError, match="2 and 64"):
        batches.next_batch()


def test_eval_batches_hold_every_example_once(tmp_path):
    dataset = _make(tmp_path, [11, 1, 6], split="dev")
    batches = list(eval_batches(dataset, "dev", PARAMS))
    assert sorted(s for batch in batches for s in _unpack(batch)) == _of_dataset(dataset, "dev")
    assert {batch.source_ids.shape for batch in batches} == {(3, 12)}
    assert {batch.target_ids.shape for batch in batches} == {(3, 10)}
    assert list(eval_batches(dataset, "test", PARAMS)) == []


def test_prefetcher_gives_the_same_batches_and_the_state_of_the_last_taken(tmp_path):
    dataset = _make(tmp_path, [7, 20])
    plain = TrainInput(dataset, PARAMS, seed=1)
    with Prefetcher(TrainInput(dataset, PARAMS, seed=1)) as batches:
        assert _equal(batches.state(), plain.state())
        for _ in range(10):
            assert _equal(batches.next_batch(), plain.next_batch())
            assert _equal(batches.state(), plain.state())
        state = batches.state()
    with Prefetcher(TrainInput(dataset, PARAMS, seed=1)) as resumed:
        resumed.restore(state)
        assert _equal(resumed.next_batch(), plain.next_batch())


def test_prefetcher_raises_what_its_thread_raised(tmp_path):
    dataset = _make(tmp_path, [4])
    (tmp_path / "train/x0-en-0").unlink()
    with (
        Prefetcher(TrainInput(dataset, PARAMS, seed=1)) as batches,
        pytest.raises(OSError, match="missing or damaged"),
    ):
        batches.next_batch()
