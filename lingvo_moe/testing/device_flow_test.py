"""Tests of flexible routing: by hand, and its rules as properties."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.testing.device_flow import device_flow
from lingvo_moe.testing.placements import random_placement


def test_by_hand():
    # One expert of interest, 0: 12 tokens, all of device 0; slots: one on each of devices 0, 1, 2.
    # cap 4: four stay, eight go over spare rooms of 4 and 4.
    placement = Placement([[0, 1], [0, 1], [0, 1]], 2)
    loads = np.array([[12, 0], [0, 0], [0, 0]])
    flow = device_flow(loads, placement.counts())
    assert flow[0].tolist() == [[4, 4, 4], [0, 0, 0], [0, 0, 0]]
    # 7, 2, 0: cap 3; three of seven stay, both of device 1 stay; spare 1 and 3 for the rest of 4.
    flow = device_flow(np.array([[7, 0], [2, 0], [0, 0]]), placement.counts())
    assert flow[0].tolist() == [[3, 1, 3], [0, 2, 0], [0, 0, 0]]


def test_the_rest_is_spread_in_proportion_from_every_source():
    # Sources 0 and 1 have 60 and 30 tokens of expert 0, which lives on devices 2 and 3 with two
    # slots and one: cap 30. Device 2 gets two thirds of each source.
    placement = Placement([[1, 1], [1, 1], [0, 0], [0, 1]], 2)
    loads = np.array([[60, 0], [30, 0], [0, 0], [0, 0]])
    flow = device_flow(loads, placement.counts())
    assert flow[0, :2].tolist() == [[0, 0, 40, 20], [0, 0, 20, 10]]


def test_what_rounding_leaves_is_laid_evenly_over_the_room():
    # 13 tokens on five slots: cap 3. Two of device 0's five must go; the others have room for one
    # each, so floor(2 · 1 / 4) = 0. Of these four places the two take the first and the third.
    placement = Placement([[0], [0], [0], [0], [0]], 1)
    flow = device_flow(np.array([[5], [2], [2], [2], [2]]), placement.counts())
    assert flow[0, 0].tolist() == [3, 1, 0, 1, 0]


def random_loads(rng, placement, most=60):
    """Skewed, with experts and devices that have none."""
    scale = rng.integers(0, most, placement.num_experts) * rng.integers(
        0, 2, (placement.num_devices, placement.num_experts)
    )
    return rng.poisson(scale)


@pytest.mark.parametrize("seed", range(60))
def test_rules(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    loads = random_loads(rng, placement, int(rng.choice([3, 60, 5000])))
    counts = placement.counts()
    flow = device_flow(loads, counts)
    # Nothing is lost, and nothing goes where the expert is not.
    assert flow.min(initial=0) >= 0
    assert np.array_equal(flow.sum(axis=2), loads.T)
    assert not flow.sum(axis=1)[counts == 0].any()
    cap = -(-loads.sum(axis=0) // counts.sum(axis=1))
    # No slot takes more than the cap, a share rounded up.
    assert np.all(flow.sum(axis=1) <= cap[:, None] * counts)
    # Local first: what stays is all that there is, or all that there is room for.
    devices = np.arange(placement.num_devices)
    kept = flow[:, devices, devices]
    assert np.array_equal(kept, np.minimum(loads.T, cap[:, None] * counts))


def test_large_numbers():
    # 3 million tokens: products pass 2³¹ by far.
    flow = device_flow(np.array([[3_000_000], [0], [0]]), np.array([[0, 2, 1]]))
    assert flow[0, 0].tolist() == [0, 2_000_000, 1_000_000]
