"""Tests of traces: the file, the recorder, other numbers of devices, the generator's skew."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.placement.traces import SyntheticLoads, Trace, TraceRecorder


def _trace(loads, **changes):
    loads = np.asarray(loads)
    fields = {"steps": np.arange(len(loads)), "layers": ("a",) * loads.shape[1]}
    return Trace(loads=loads, **(fields | changes))


def test_a_file_and_back(tmp_path):
    trace = _trace(np.arange(24).reshape(2, 2, 3, 2), layers=("enc/1", "enc/3"))
    trace.save(tmp_path / "loads.npz")
    back = Trace.load(tmp_path / "loads.npz")
    assert np.array_equal(back.loads, trace.loads)
    assert np.array_equal(back.steps, [0, 1])
    assert back.layers == ("enc/1", "enc/3")
    assert [p.name for p in tmp_path.iterdir()] == ["loads.npz"]


def test_numbers_of_experts(tmp_path):
    loads = np.array([[[[1, 2, 0]], [[3, 4, 5]]]])
    trace = _trace(loads, layers=("a", "b"), experts=(2, 3))
    trace.save(tmp_path / "loads.npz")
    assert Trace.load(tmp_path / "loads.npz").layer_experts == (2, 3)
    assert trace.of_layer(0).tolist() == [[[1, 2]]]
    for wrong in ((1, 3), (2,), (2, 4), (0, 3)):
        with pytest.raises(
            ValueError, match="must have a number from 1 to 3 for each of the 2 lay"
        ):
            _trace(loads, layers=("a", "b"), experts=wrong)
    np.savez(tmp_path / "earlier.npz", loads=loads, steps=[0], layers=["a", "b"])
    assert Trace.load(tmp_path / "earlier.npz").layer_experts == (3, 3)


def test_loads_beyond_32_bits():
    trace = _trace(np.full((1, 1, 4, 2), 2**30, np.int32))
    with pytest.raises(ValueError, match=r"2,147,483,648 times.* Raise devices \(now 2\)"):
        trace.on_devices(2)
    with pytest.raises(ValueError, match=r"2,147,483,650 times.* Lower choices \(now 1"):
        _trace(np.array([[[[1, 0]], [[0, 0]]]]).reshape(2, 1, 1, 2)).scaled(2**30 + 1)


def test_no_file_and_another_file(tmp_path):
    with pytest.raises(ValueError, match="holds no trace of expert loads"):
        Trace.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    with pytest.raises(ValueError, match=r"other.npz holds no trace .* an .npz file of steps"):
        Trace.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("loads", "changes", "text"),
    [
        (np.ones((2, 1, 2, 2), int), {"steps": np.array([0])}, "with 1 steps and 1 layers"),
        (np.ones((2, 1, 2, 2), int), {"steps": np.array([1, 1])}, "must ascend"),
        (np.ones((1, 1, 2, 2)), {}, "integers from 0 on; got float64"),
        (-np.ones((1, 1, 2, 2), int), {}, "integers from 0 on"),
        (np.ones((1, 1, 0, 2), int), {}, "none of them 0"),
    ],
)
def test_what_is_no_trace(loads, changes, text):
    with pytest.raises(ValueError, match=text):
        _trace(loads, **changes)


def test_devices_merge_and_split_by_hand():
    # Two sources. As one: sums. As four: 5 = 3 + 2; then 4 = 2 + 2, the odd one's turn being over.
    trace = _trace(np.array([[[[5, 4], [1, 2]]]]))
    assert trace.on_devices(1).loads.tolist() == [[[[6, 6]]]]
    assert trace.on_devices(2).loads.tolist() == trace.loads.tolist()
    assert trace.on_devices(4).loads.tolist() == [[[[3, 2], [2, 2], [1, 1], [0, 1]]]]
    with pytest.raises(ValueError, match="2 source devices cannot be replayed on 3"):
        trace.on_devices(3)


def test_scaling_by_hand():
    # Twelve choices on two sources are six on the mean; to fifteen, two and a half times as many.
    trace = _trace(np.array([[[[5, 4], [1, 2]]]])).scaled(15)
    assert trace.loads.tolist() == [[[[12, 10], [2, 5]]]]


def test_splitting_keeps_tokens_and_sizes():
    trace = SyntheticLoads(devices=4, experts=8, top=2, steps=2, tokens=100).generate()
    split = trace.on_devices(16).loads
    assert np.array_equal(split.reshape(2, 1, 4, 4, 8).sum(axis=3), trace.loads)
    assert set(split.sum(axis=3).ravel()) == {50}


def test_the_recorder_resumes(tmp_path):
    path = tmp_path / "loads.npz"
    recorder = TraceRecorder(path, ["a"], (2, 2))
    recorder.save()
    assert not path.exists()
    for step in (0, 10, 20):
        recorder.add(step, np.full((1, 2, 2), step + 0.1))
    recorder.save()
    # A run that resumes from step 10 records 10 anew; what came later is forgotten.
    recorder = TraceRecorder(path, ["a"], (2, 2))
    recorder.add(10, np.full((1, 2, 2), 7))
    recorder.add(20, np.full((1, 2, 2), 8))
    recorder.save()
    trace = Trace.load(path)
    assert trace.steps.tolist() == [0, 10, 20]
    assert trace.loads[:, 0, 0, 0].tolist() == [0, 7, 8]
    with pytest.raises(ValueError, match=r"is a trace of layers \('a',\), not \('b',\)"):
        TraceRecorder(path, ["b"], (2, 2))
    with pytest.raises(ValueError, match=r"is of .groups, experts. .2, 2., not .4, 2."):
        TraceRecorder(path, ["a"], (4, 2))
    with pytest.raises(ValueError, match=r"Loads of step 30 are \(1, 2, 3\)"):
        recorder.add(30, np.zeros((1, 2, 3)))


def test_a_recording_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(IsADirectoryError, match=rf"{tmp_path} is a directory; give the name of a"):
        TraceRecorder(tmp_path, ["a"], (2, 2))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TraceRecorder(tmp_path / "file" / "loads.npz", ["a"], (2, 2))


def test_the_generator_is_as_skewed_as_the_paper_says_and_drifts_smoothly():
    loads = SyntheticLoads(devices=8, steps=200, tokens=16384).generate().loads[:, 0].sum(axis=1)
    shares = loads / loads.sum(axis=1, keepdims=True)
    top = np.sort(shares, axis=1)[:, -10:].sum(axis=1)
    assert 0.72 < top.mean() < 0.78
    assert np.ptp(top) < 0.05
    # From step to step less than 1 % of choices change the expert, over 200 steps a quarter.
    change = np.abs(np.diff(shares, axis=0)).sum(axis=1) / 2
    assert change.max() < 0.01
    assert np.abs(shares[-1] - shares[0]).sum() / 2 > 0.25


def test_the_generator_counts_and_repeats():
    wanted = SyntheticLoads(devices=3, experts=8, top=2, steps=4, layers=2, tokens=50, seed=5)
    first, again = wanted.generate(), wanted.generate()
    assert np.array_equal(first.loads, again.loads)
    assert first.loads.shape == (4, 2, 3, 8)
    assert np.all(first.loads.sum(axis=3) == 100)
    assert first.layers == ("layer_00", "layer_01")
    assert not np.array_equal(first.loads[:, 0], first.loads[:, 1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"top": 64}, "top must be from 1 to 63, got 64"),
        ({"top_share": 0.1}, r"top_share must be in \[10/64, 1\), got 0.1"),
        ({"tokens": 0}, "tokens must be >= 1, got 0"),
        ({"memory": 0.0}, "memory must be > 0, got 0.0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_errors(changes, text):
    with pytest.raises(ValueError, match=text):
        SyntheticLoads(devices=4, **changes)


@pytest.mark.parametrize("choices", [0, -1, float("nan"), float("inf"), 1e18])
def test_choices_out_of_range(choices):
    trace = Trace(loads=np.ones((1, 1, 2, 2), np.int32), steps=np.arange(1), layers=("a",))
    with pytest.raises(ValueError, match="choices must be above 0 and below"):
        trace.scaled(choices)
    with pytest.raises(ValueError, match="The trace has no choices"):
        dataclasses.replace(trace, loads=trace.loads * 0).scaled(9)


@pytest.mark.parametrize(
    "changes",
    [
        {"loads": np.ones((2, 1, 2, 2))},
        {"loads": -np.ones((2, 1, 2, 2), np.int32)},
        {"loads": np.ones((2, 2), np.int32)},
        {"loads": np.array("text")},
        {"steps": np.array(3)},
        {"steps": np.array([1, 1])},
        {"layers": np.array("a")},
        {"layers": np.array(["a", "b"])},
    ],
)
def test_a_file_of_something_else(tmp_path, changes):
    fields = {"loads": np.ones((2, 1, 2, 2), np.int32), "steps": np.arange(2), "layers": ["a"]}
    np.savez(tmp_path / "good.npz", **fields)
    Trace.load(tmp_path / "good.npz")
    np.savez(tmp_path / "bad.npz", **(fields | changes))
    with pytest.raises(ValueError, match=r"bad\.npz holds no trace of expert loads"):
        Trace.load(tmp_path / "bad.npz")
