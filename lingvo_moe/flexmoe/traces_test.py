"""Tests of the file of a trace."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.traces import Trace


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


def test_a_layer_has_its_own_number_of_experts(tmp_path):
    trace = _trace([[[[1, 2, 0]], [[3, 4, 5]]]], layers=("a", "b"), experts=(2, 3))
    trace.save(tmp_path / "loads.npz")
    assert Trace.load(tmp_path / "loads.npz").layer_experts == (2, 3)
    assert trace.of_layer(0).tolist() == [[[1, 2]]]


@pytest.mark.parametrize(
    "changes",
    [{"loads": np.ones((2, 2))}, {"loads": np.array("text")}, {"layers": ["a", "b"]}, None],
)
def test_a_file_of_something_else(tmp_path, changes):
    fields = {"loads": np.ones((2, 1, 2, 2), np.int32), "steps": np.arange(2), "layers": ["a"]}
    if changes is not None:
        np.savez(tmp_path / "bad.npz", **(fields | {"experts": [2]} | changes))
    with pytest.raises(ValueError, match=r"bad.npz"):
        Trace.load(tmp_path / "bad.npz")
