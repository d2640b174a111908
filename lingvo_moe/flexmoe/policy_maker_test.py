"""Tests of the search: by hand, compared with all placements, and that plans save time."""

import itertools

import numpy as np
import pytest

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import EMPTY, Expand, Migrate, Placement, Replace
from lingvo_moe.flexmoe.policy_maker import PolicyMaker, SearchState
from lingvo_moe.testing.placements import make_cost, random_placement


def _free(devices, **changes):
    """Only compute has a cost."""
    nothing = {"token_bytes": 0.0, "gradient_bytes": 0.0, "state_bytes": 0.0}
    return make_cost(devices, **(nothing | changes))


def _seconds(cost, loads, placement):
    return cost.expected(loads.T.astype(float), placement.counts()).total.sum(axis=0).max()


def _apply(plan, placement):
    for move in plan.moves:
        placement = move.apply(placement)
    return placement


def test_the_paper_s_pair_by_hand():
    # Two devices, two slots each. Expert 0 has 90 tokens on device 0, expert 1 has 10 on device 1.
    # A slot of expert 1 for expert 0: three slots of 30, so devices have 60 and 40.
    cost, start = _free(2), Placement([[0, 0], [1, 1]], 2)
    loads = np.array([[45, 5], [45, 5]])
    # Beyond the paper's pair: a slot of device 0 for expert 1, and both devices have 45 + 5.
    plan = PolicyMaker(cost=cost).plan(loads, start)
    assert plan.moves == (Replace(0, 2), Replace(1, 0))
    assert plan.seconds_before == pytest.approx(0.9)
    assert plan.seconds_after == pytest.approx(0.5)
    assert plan.adjustment_seconds == 0
    after = Replace(0, 2).apply(start)
    assert device_tokens(loads, after).tolist() == [60, 40]


def test_an_empty_slot_is_taken_first():
    cost, start = _free(2), Placement([[0], [EMPTY]], 1)
    plan = PolicyMaker(cost=cost).plan(np.array([[8], [2]]), start)
    assert plan.moves == (Expand(0, 1),)
    assert plan.seconds_after == pytest.approx(0.05)


def test_ties_of_the_maximum_do_not_end_the_search():
    # Devices 0 and 1 are equally busy, so no single move lowers the maximum.
    start = Placement([[0, 0], [1, 1], [2, 2], [3, 3]], 4)
    loads = np.tile(np.array([100, 100, 4, 4]), (4, 1))
    plan = PolicyMaker(cost=_free(4)).plan(loads, start)
    after = _apply(plan, start)
    # 208 tokens a device would be balance. With six slots for experts 0 and 1, 400 / 3 each, two of
    # four devices have two of them at least: 267 / 208 = 1.28 is the best there is.
    assert balance_ratio(device_tokens(loads, start)) == pytest.approx(400 / 208)
    assert balance_ratio(device_tokens(loads, after)) < 1.3


def test_replicas_come_together_where_synchronising_costs():
    # Both experts lie on both devices with equal loads; one device for each ends all
    # synchronisation. Gradients of 8 bytes within a node: 8 · 0.5 / 2 = 2 s for each expert.
    # Copies within a device are free.
    start = Placement([[0, 1], [0, 1]], 2)
    cost = make_cost(2, token_bytes=0.0, state_bytes=1.0)
    loads = np.array([[10, 10], [10, 10]])
    plan = PolicyMaker(cost=cost).plan(loads, start)
    assert plan.seconds_before == pytest.approx(0.2 + 4)
    assert plan.seconds_after == pytest.approx(0.2)
    assert plan.adjustment_seconds == 0
    assert sorted(_apply(plan, start).slots.tolist()) == [[0, 0], [1, 1]]


def test_a_plan_must_pay():
    # As by hand above, the first move saves 0.3 s a step. A copy of 80 bytes takes 80 / 40 s: 6.7
    # steps.
    start, loads = Placement([[0, 0], [1, 1]], 2), np.array([[45, 5], [45, 5]])
    cost = _free(2, state_bytes=80.0)
    plan = PolicyMaker(cost=cost, horizon=6.8).plan(loads, start)
    assert plan.moves == (Replace(0, 2),)
    assert plan.adjustment_seconds == pytest.approx(2)
    assert PolicyMaker(cost=cost, horizon=6.6).plan(loads, start).moves == ()


def test_against_all_placements():
    """3 devices of 2 slots, 3 experts: each of the 3⁶ tables, of which 540 hold all experts."""
    cost = make_cost(3, node=1, token_bytes=0.02, gradient_bytes=0.05, state_bytes=0.0)
    tables = [
        Placement(np.array(t).reshape(3, 2), 3)
        for t in itertools.product(range(3), repeat=6)
        if set(t) == {0, 1, 2}
    ]
    assert len(tables) == 540
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(40):
        loads = rng.poisson(rng.exponential(100, 3), (3, 3)) + 1
        best = min(_seconds(cost, loads, table) for table in tables)
        start = Placement.even(3, 2, 3)
        found = _seconds(cost, loads, _apply(PolicyMaker(cost=cost).plan(loads, start), start))
        assert found >= best * (1 - 1e-9)
        gaps.append(found / best)
    assert np.mean(gaps) < 1.05
    assert max(gaps) < 1.25
    assert np.mean(np.array(gaps) < 1.001) > 0.5


@pytest.mark.parametrize("seed", range(15))
def test_plans_are_valid_and_as_predicted(seed):
    rng = np.random.default_rng(seed)
    start = random_placement(rng)
    cost = make_cost(start.num_devices, token_bytes=0.01, state_bytes=0.1)
    loads = rng.poisson(rng.exponential(100, start.num_experts), start.counts().T.shape)
    plan = PolicyMaker(cost=cost, max_moves=7).plan(loads, start)
    after = _apply(plan, start)
    assert plan.seconds_before == pytest.approx(_seconds(cost, loads, start))
    assert plan.seconds_after == pytest.approx(_seconds(cost, loads, after))
    assert plan.adjustment_seconds == pytest.approx(cost.adjustment_seconds(start, after))
    if plan.moves:
        assert (plan.seconds_before - plan.seconds_after) * 20 > plan.adjustment_seconds


def test_the_board_keeps_up_with_moves():
    rng = np.random.default_rng(0)
    cost, placement = make_cost(4, token_bytes=0.01), Placement.even(4, 3, 6)
    loads = rng.poisson(rng.exponential(100, 6), (4, 6))
    board = SearchState(cost, loads, placement)
    expert, device = (x.ravel() for x in np.indices((6, 4)))
    for move in (Replace(5, 0), Migrate(3, 10), Replace(1, 4)):
        for by in (1, -1):
            board.changed(expert, device, by)
        board.apply(move)
        fresh = SearchState(cost, loads, board.placement)
        np.testing.assert_allclose(board.seconds, fresh.seconds)
        gives = (board.counts > 0) & (board.counts.sum(axis=1, keepdims=True) > 1)
        for by, of in ((1, np.ones_like(gives)), (-1, gives)):
            ours, counts = board.changed(expert, device, by), board.counts[expert]
            counts = counts + by * np.eye(4, dtype=int)[device]
            for i in np.flatnonzero(of.ravel()):
                e = expert[i]
                slow = cost.expected(loads.T[e].astype(float), counts[i]).total - board.seconds[e]
                np.testing.assert_allclose(ours[i], slow)
