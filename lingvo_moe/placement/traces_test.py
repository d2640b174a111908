"""Tests of traces: the file and the recorder."""

import numpy as np
import pytest

from lingvo_moe.placement.traces import Trace, TraceRecorder


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
