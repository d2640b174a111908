"""Tests of the cost model: every term by hand, divisible tokens against whole ones, the profile."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.placement.cost import CostModel, Profile, balance_ratio, device_tokens
from lingvo_moe.placement.placement import EMPTY, Migrate, Placement, Replace
from lingvo_moe.placement.placement_test import random_placement
from lingvo_moe.placement.routing import device_flow


def make_cost(devices=4, node=2, **changes):
    """Round numbers: 100 tokens/s; 40 bytes/s within a node, 10 between; 1 byte a token."""
    nodes = np.arange(devices) // node
    bandwidth = np.where(nodes[:, None] == nodes, 40.0, 10.0)
    np.fill_diagonal(bandwidth, np.inf)
    fields = {
        "tokens_per_second": 100.0,
        "bandwidth": bandwidth,
        "nodes": nodes,
        "sync_near": 0.5,
        "sync_far": 2.0,
        "token_bytes": 1.0,
        "gradient_bytes": 8.0,
        "state_bytes": 80.0,
    }
    return CostModel(**(fields | changes))


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
    got = make_cost(sync_each=0.25).sync_seconds(np.array(counts))
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
    # Both at once leave device 0 one after the other; a far swap goes both ways at once.
    assert cost.adjustment_seconds(start, Replace(0, 7).apply(near)) == pytest.approx(10)
    assert cost.adjustment_seconds(start, Migrate(0, 7).apply(start)) == pytest.approx(8)
    # Giving up is free; so is a second replica beside the first, and nothing.
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
                k = len(set(cost.nodes[holders]))
                m = len(holders) / k
                per_byte = cost.sync_near * (1 - 1 / m) + cost.sync_far * (1 - 1 / k) / m
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


def _profile(cost, noise=0.0):
    """What a machine of these rates would measure."""
    rng = np.random.default_rng(0)

    def measured(seconds):
        return seconds * (1 + noise * rng.uniform(-1, 1))

    compute = [
        (n, measured(cost.expert_seconds + n / cost.tokens_per_second)) for n in (64, 512, 4096)
    ]
    exchange = [
        (s, t, size, measured(size / cost.bandwidth[s, t]))
        for s, t in ((0, 1), (0, 2), (3, 0))
        for size in (1e3, 1e5)
    ]
    groups = [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]
    all_reduce = [
        (n, k, size, measured(cost.sync_seconds(np.array(g))[0] * size / cost.gradient_bytes))
        for g, n, k in zip(groups, (2, 2, 4), (1, 2, 2), strict=True)
        for size in (1e4, 1e6)
    ]
    return Profile(compute=tuple(compute), exchange=tuple(exchange), all_reduce=tuple(all_reduce))


SIZES = {"token_bytes": 1.0, "gradient_bytes": 8.0, "state_bytes": 80.0}


def test_a_profile_finds_the_rates_again():
    true = make_cost(expert_seconds=0.1, sync_each=0.125)
    fitted, errors = _profile(true).fit([0, 0, 1, 1], **SIZES)
    for field in dataclasses.fields(true):
        np.testing.assert_allclose(getattr(fitted, field.name), getattr(true, field.name))
    assert max(errors.values()) < 1e-9
    fitted, errors = _profile(make_cost(), noise=0.1).fit([0, 0, 1, 1], **SIZES)
    assert fitted.tokens_per_second == pytest.approx(100, rel=0.1)
    assert fitted.sync_far == pytest.approx(2, rel=0.2)
    assert 0.01 < max(errors.values()) < 0.25


def test_a_pair_that_was_measured_keeps_its_own_rate():
    samples = ((0, 1, 100.0, 1.0), (2, 3, 100.0, 4.0))
    profile = dataclasses.replace(_profile(make_cost()), exchange=samples)
    fitted, _ = profile.fit([0, 0, 0, 0], **SIZES)
    assert fitted.bandwidth[0, 1] == pytest.approx(100)
    assert fitted.bandwidth[2, 3] == pytest.approx(25)
    # Least squares of x / 0.01 - 1 and x / 0.04 - 1: x = (1 + 1/4) / (1 + 1/16) hundredths.
    assert 1 / fitted.bandwidth[0, 2] == pytest.approx(0.01 * 1.25 / (1 + 1 / 16))


def test_what_was_measured_once_is_taken_as_proportional():
    # Tokens alone, no fixed time; two devices alone, nothing for each further one.
    samples = {"compute": ((50, 2.0),), "all_reduce": ((2, 1, 100.0, 6.0),)}
    profile = dataclasses.replace(_profile(make_cost()), **samples)
    fitted, _ = profile.fit([0, 0, 0, 0], **SIZES)
    assert (fitted.expert_seconds, fitted.sync_each, fitted.sync_far) == (0, 0, 0)
    assert fitted.tokens_per_second == pytest.approx(25)
    assert fitted.sync_near == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"compute": ()}, "holds no measurement of compute"),
        ({"exchange": ((0, 1, 1.0, 1.0),)}, "no exchange between nodes, but devices 0 and 2"),
        ({"all_reduce": ((2, 1, 1.0, 1.0),)}, "no all_reduce between nodes"),
    ],
)
def test_profiles_that_do_not_suffice(changes, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(_profile(make_cost()), **changes).fit([0, 0, 1, 1], **SIZES)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bandwidth": np.ones((2, 2))}, r"\[4, 4\] for 4 devices; got \(2, 2\)"),
        ({"bandwidth": np.ones((4, 4))}, "to itself must be infinite"),
        ({"tokens_per_second": 0.0}, "tokens_per_second must be > 0, got 0.0"),
        ({"sync_far": -1.0}, "sync_far must be at least 0, got -1.0"),
    ],
)
def test_errors(changes, text):
    with pytest.raises(ValueError, match=text):
        make_cost(**changes)


def test_what_should_be_equal_by_hand():
    placement = Placement([[0, 0], [1, EMPTY]], 2)
    loads = np.array([[40, 5], [20, 5]])
    assert make_cost(2).to_be_equal(loads, placement).tolist() == [60, 10]
    padded = make_cost(2, padded=True)
    assert padded.to_be_equal(loads, placement).tolist() == [30, 30, 10, 0]
    assert padded.padded_seconds(30, 2) == pytest.approx(0.6)
    assert make_cost(2).padded_seconds(30, 2) == 0
