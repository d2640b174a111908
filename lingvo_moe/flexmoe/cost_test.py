"""Tests of the cost model: every term by hand, expected compared with whole tokens."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import EMPTY, Migrate, Placement, Replace
from lingvo_moe.testing.device_flow import device_flow
from lingvo_moe.testing.placements import make_cost, random_placement


def test_a_step_by_hand():
    # Expert 0: 60 tokens, 40 of device 0, 20 of device 2; slots on devices 0 and 1: cap 30.
    # Device 0 keeps 30. Device 1 gets 10 from device 0 (near) and 20 from device 2 (far).
    cost, counts = make_cost(), np.array([[1, 1, 0, 0]])
    loads = np.array([[40], [0], [20], [0]])
    for seconds in (
        cost.expected(loads.T.astype(float), counts),
        cost.of_flow(device_flow(loads, counts), counts),
    ):
        np.testing.assert_allclose(seconds.compute, [[0.3, 0.3, 0, 0]])
        # 4 exchanges · (10 / 40 + 20 / 10)
        np.testing.assert_allclose(seconds.exchange, [[0, 9.0, 0, 0]])
        # Two devices of one node: 8 bytes · 0.5 · (1 - 1/2).
        np.testing.assert_allclose(seconds.synchronise, [[2, 2, 0, 0]])
        np.testing.assert_allclose(seconds.total, [[2.3, 11.3, 0, 0]])


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [
        ([3, 0, 0, 0], 0.0),  # replicas of one device share weights
        ([1, 1, 0, 0], 8 * 0.5 / 2),
        ([1, 0, 1, 0], 8 * 2.0 / 2),  # two nodes, one device of each
        ([1, 2, 1, 1], 8 * (0.5 / 2 + 2.0 / 2 / 2)),  # two nodes of two: shares of half the size
    ],
)
def test_synchronisation_by_hand(counts, seconds):
    holds = np.array(counts) > 0
    got = make_cost().sync_seconds(np.array(counts))
    np.testing.assert_allclose(got, np.where(holds, seconds, 0))
    # In one memory 8 bytes · 0.25 for each further device come on top.
    got = make_cost(crowding=0.25).sync_seconds(np.array(counts))
    np.testing.assert_allclose(got, np.where(holds, seconds + 2 * (holds.sum() - 1), 0))


def test_an_expert_takes_time_without_tokens_too():
    cost, counts, loads = make_cost(expert_seconds=0.5), np.array([[1, 3, 0, 0]]), np.zeros((4, 1))
    for seconds in (
        cost.expected(loads.T, counts),
        cost.of_flow(np.zeros((1, 4, 4), int), counts),
    ):
        np.testing.assert_allclose(seconds.compute, [[0.5, 0.5, 0, 0]])


def test_adjustment_by_hand():
    cost = make_cost()
    start = Placement([[0, 0], [1, 1], [2, 2], [3, 3]], 4)
    # 80 bytes from device 0 to device 1, near, and to device 3, far.
    near = Replace(0, 3).apply(start)
    assert cost.adjustment_seconds(start, near) == pytest.approx(2)
    far = Replace(0, 7).apply(start)
    assert cost.adjustment_seconds(start, far) == pytest.approx(8)
    # Device 0 sends both one after the other; a far swap sends in both directions at the same time.
    assert cost.adjustment_seconds(start, Replace(0, 7).apply(near)) == pytest.approx(10)
    assert cost.adjustment_seconds(start, Migrate(0, 7).apply(start)) == pytest.approx(8)
    # Removing a replica is free, as are a second replica on the same device and no change.
    freed = start.replace({1: EMPTY})
    assert cost.adjustment_seconds(start, freed) == 0
    assert cost.adjustment_seconds(freed, freed.replace({1: 0})) == 0
    assert cost.adjustment_seconds(start, start) == 0


def _slow_step(cost, loads, placement):
    """The formula in loops, over flow of whole tokens."""
    counts, flow = placement.counts(), device_flow(loads, placement.counts())
    result = np.zeros(cost.num_devices)
    for g in range(cost.num_devices):
        for e in range(placement.num_experts):
            result[g] += flow[e, :, g].sum() / cost.tokens_per_second
            for h in range(cost.num_devices):
                if h != g:
                    result[g] += 4 * flow[e, h, g] * cost.token_bytes / cost.bandwidth[h, g]
            holders = np.flatnonzero(counts[e])
            if g in holders and len(holders) > 1:
                k = len(set(holders // cost.wires.node))
                m = len(holders) / k
                per_byte = 0.5 * (1 - 1 / m) + 2.0 * (1 - 1 / k) / m
                result[g] += cost.gradient_bytes * per_byte
    return result


@pytest.mark.parametrize("seed", range(15))
def test_against_loops_and_divisible_against_whole_tokens(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    cost = make_cost(placement.num_devices)
    loads = rng.poisson(2000, (placement.num_devices, placement.num_experts))
    slow = _slow_step(cost, loads, placement)
    counts = placement.counts()
    whole = cost.of_flow(device_flow(loads, counts), counts).total.sum(axis=0)
    np.testing.assert_allclose(whole, slow)
    divisible = cost.expected(loads.T.astype(float), counts).total.sum(axis=0)
    np.testing.assert_allclose(divisible, slow, rtol=0.02, atol=2)


def test_balance():
    # Expert 0 has 30 tokens on three slots, expert 1 has 10: devices 20 and 20; without replicas
    # on the second device 30 and 10.
    loads = np.array([[25, 0], [5, 10]])
    placement = Placement([[0, 0], [0, 1]], 2)
    np.testing.assert_allclose(device_tokens(loads, placement), [20, 20])
    assert balance_ratio(device_tokens(loads, placement)) == 1
    assert balance_ratio(device_tokens(loads, Placement([[0], [1]], 2))) == 1.5
    assert balance_ratio(np.zeros(3)) == 1


def test_what_should_be_equal_by_hand():
    placement = Placement([[0, 0], [1, EMPTY]], 2)
    loads = np.array([[40, 5], [20, 5]])
    assert make_cost(2).tokens_to_balance(loads, placement).tolist() == [60, 10]
    padded = make_cost(2, padded=True)
    assert padded.tokens_to_balance(loads, placement).tolist() == [30, 30, 10, 0]
    assert padded.padded_seconds(30, 2) == pytest.approx(0.6)
    assert make_cost(2).padded_seconds(30, 2) == 0
