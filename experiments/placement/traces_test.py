"""Tests of the file of a trace."""

import numpy as np

from experiments.placement.traces import Trace


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
