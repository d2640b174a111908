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
    each = cost.expected(loads.T.astype(float), counts)
    all_in_buffers = cost.of_flow(device_flow(loads, counts), counts)
    np.testing.assert_allclose(each.compute, [[0.3, 0.3, 0, 0]])
    np.testing.assert_allclose(all_in_buffers.compute, [0.3, 0.3, 0, 0])
    # 4 exchanges · (10 / 40 + 20 / 10)
    np.testing.assert_allclose(each.exchange, [[0, 9.0, 0, 0]])
    # The busiest source has 40 tokens, 10 a device at balance. The busiest pair has 20, so buffers
    # are of 10 · 1.25³, 20 rows. A device receives one on a near link and two on far ones.
    np.testing.assert_allclose(all_in_buffers.exchange, [4 * 20 * (1 / 40 + 2 / 10)] * 4)
    # Two nodes of two devices, all in the sum: 8 bytes · (0.5 · (1 - 1/2) + 2 · (1 - 1/2) / 2).
    np.testing.assert_allclose(each.synchronise, [[6, 6, 6, 6]])
    np.testing.assert_allclose(each.total, [[6.3, 15.3, 6, 6]])
    np.testing.assert_allclose(all_in_buffers.total, [24.3, 24.3, 24, 24])


@pytest.mark.parametrize("counts", [[3, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 2, 1, 1]])
def test_synchronisation_by_hand(counts):
    """Replicas of one device share weights; otherwise all devices take part."""
    several = np.count_nonzero(counts) > 1
    got = make_cost().sync_seconds(np.array(counts))
    np.testing.assert_allclose(got, [8 * (0.5 / 2 + 2.0 / 2 / 2) * several] * 4)
    # In one memory 8 bytes · 0.25 for each further device come on top.
    got = make_cost(crowding=0.25).sync_seconds(np.array(counts))
    np.testing.assert_allclose(got, [(6 + 2 * 3) * several] * 4)


def test_an_expert_takes_time_without_tokens_too():
    cost, counts, loads = make_cost(expert_seconds=0.5), np.array([[1, 3, 0, 0]]), np.zeros((4, 1))
    for seconds in (
        cost.expected(loads.T, counts)[0][0],
        cost.of_flow(np.zeros((1, 4, 4), int), counts).compute,
    ):
        np.testing.assert_allclose(seconds, [0.5, 0.5, 0, 0])


def test_adjustment_by_hand():
    cost = make_cost()
    start = Placement([[0, 0], [1, 1], [2, 2], [3, 3]], 4)
    # 80 bytes, from device 0 to its neighbour and to another node.
    replaced = Replace(0, 7).apply(Replace(0, 3).apply(start))
    assert cost.adjustment_seconds(start, replaced) == pytest.approx(80 / 40 + 80 / 10)
    assert cost.adjustment_seconds(start, Migrate(0, 7).apply(start)) == pytest.approx(2 * 80 / 10)
    # Removing a replica is free, as are no change and a copy within a device.
    freed = start.replace({1: EMPTY})
    assert cost.adjustment_seconds(start, freed) == cost.adjustment_seconds(start, start) == 0
    assert cost.adjustment_seconds(freed, start) == 0


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
            if np.count_nonzero(counts[e]) > 1:
                k = -(-cost.num_devices // cost.wires.node)
                m = cost.num_devices / k
                per_byte = 0.5 * (1 - 1 / m) + 2.0 * (1 - 1 / k) / m
                result[g] += cost.gradient_bytes * per_byte
    return result


@pytest.mark.parametrize("seed", range(15))
def test_divisible_tokens_against_whole_ones_in_loops_and_in_buffers(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    cost = make_cost(placement.num_devices)
    loads = rng.poisson(2000, (placement.num_devices, placement.num_experts))
    slow = _slow_step(cost, loads, placement)
    counts = placement.counts()
    divisible = cost.expected(loads.T.astype(float), counts).total.sum(axis=0)
    np.testing.assert_allclose(divisible, slow, rtol=0.02, atol=2)
    in_buffers = cost.of_flow(device_flow(loads, counts), counts).total
    assert (in_buffers >= slow - 1e-9).all()


def test_balance():
    # Expert 0 has 30 tokens on three slots, expert 1 has 10: devices 20 and 20; without replicas
    # on the second device 30 and 10.
    loads = np.array([[25, 0], [5, 10]])
    placement = Placement([[0, 0], [0, 1]], 2)
    np.testing.assert_allclose(device_tokens(loads, placement), [20, 20])
    assert balance_ratio(device_tokens(loads, placement)) == 1
    assert balance_ratio(device_tokens(loads, Placement([[0], [1]], 2))) == 1.5
    assert balance_ratio(np.zeros(3)) == 1
