"""Tests of loads: other numbers of devices, and the generator's skew."""

import dataclasses

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads, on_devices, scaled
from lingvo_moe.placement.traces import Trace


def _trace(loads, **changes):
    loads = np.asarray(loads)
    fields = {"steps": np.arange(len(loads)), "layers": ("a",) * loads.shape[1]}
    return Trace(loads=loads, **(fields | changes))


def test_loads_beyond_32_bits():
    trace = _trace(np.full((1, 1, 4, 2), 2**30, np.int32))
    with pytest.raises(ValueError, match=r"2,147,483,648 times.* Raise devices \(now 2\)"):
        on_devices(trace, 2)
    with pytest.raises(ValueError, match=r"2,147,483,650 times.* Lower choices \(now 1"):
        scaled(_trace(np.array([[[[1, 0]], [[0, 0]]]]).reshape(2, 1, 1, 2)), 2**30 + 1)


def test_devices_merge_and_split_by_hand():
    # Two sources. As one: sums. As four: 5 = 3 + 2; then 4 = 2 + 2, the odd one's turn being over.
    trace = _trace(np.array([[[[5, 4], [1, 2]]]]))
    assert on_devices(trace, 1).loads.tolist() == [[[[6, 6]]]]
    assert on_devices(trace, 2).loads.tolist() == trace.loads.tolist()
    assert on_devices(trace, 4).loads.tolist() == [[[[3, 2], [2, 2], [1, 1], [0, 1]]]]
    with pytest.raises(ValueError, match="2 source devices cannot be replayed on 3"):
        on_devices(trace, 3)


def test_scaling_by_hand():
    # Twelve choices on two sources are six on the mean; to fifteen, two and a half times as many.
    trace = scaled(_trace(np.array([[[[5, 4], [1, 2]]]])), 15)
    assert trace.loads.tolist() == [[[[12, 10], [2, 5]]]]


def test_splitting_keeps_tokens_and_sizes():
    trace = SyntheticLoads(devices=4, experts=8, top=2, steps=2, tokens=100).generate()
    split = on_devices(trace, 16).loads
    assert np.array_equal(split.reshape(2, 1, 4, 4, 8).sum(axis=3), trace.loads)
    assert set(split.sum(axis=3).ravel()) == {50}


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
        scaled(trace, choices)
    with pytest.raises(ValueError, match="The trace has no choices"):
        scaled(dataclasses.replace(trace, loads=trace.loads * 0), 9)
