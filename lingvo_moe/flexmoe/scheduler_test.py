"""Tests of triggers, the queue and the scheduler: by hand."""

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.forecast import Forecast
from lingvo_moe.flexmoe.placement import Expand, Migrate, Placement, Replace, Shrink
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.rebuild import find_moves
from lingvo_moe.flexmoe.scheduler import MoveQueue, Scheduler, State, count_moves
from lingvo_moe.hardware.links import Switched
from lingvo_moe.testing.placements import make_cost

START = Placement([[0, 0], [1, 1], [2, 2], [3, 3]], 4)


def test_planning_begins_above_the_threshold_and_ends_at_the_release():
    scheduler = Scheduler(
        maker=_maker(2, state_bytes=1e9),
        threshold=1.2,
        release=1.1,
        forecast=Forecast(smoothing=(0.0,)),
    )
    state, said = State(Placement([[0], [1]], 2)), []
    for busiest in (115, 125, 115, 108, 115, 121):  # of a mean of 100
        state, _ = scheduler.step(state, np.array([[busiest, 200 - busiest], [0, 0]]))
        said.append(state.active)
    # 115 is below the threshold at first; after 125 it is above the release; 108 is below it.
    assert said == [False, True, True, False, False, True]


def _maker(devices=4, **changes):
    return PolicyMaker(cost=make_cost(devices, **changes))


def test_the_queue_merges_what_fits_the_budget():
    # 80 bytes; near 40 bytes/s: 2 s, far 10 bytes/s: 8 s. Devices 0, 1 and 2, 3 are near.
    moves = (Replace(0, 3), Replace(2, 7), Replace(0, 5))
    queue, cost = MoveQueue(moves), make_cost()
    # Near copies of devices 0 and 2 go at the same time; the far one waits.
    rest, after, taken = queue.take(START, cost, 2.0)
    assert taken == moves[:2]
    assert rest.moves == moves[2:]
    assert after.slots.tolist() == [[0, 0], [1, 0], [2, 2], [3, 2]]
    # The first move is always taken.
    rest, after, taken = rest.take(after, cost, 2.0)
    assert taken == moves[2:]
    assert rest.moves == ()
    # Without a bound all go at once.
    assert queue.take(START, cost, float("inf"))[1] == after


def test_the_queue_keeps_the_order_of_what_shares_a_slot():
    # The far expansion waits, and so does what comes after it in its slot, or has the same expert.
    moves = (Replace(0, 3), Replace(0, 5), Migrate(5, 6), Shrink(7))
    rest, after, taken = MoveQueue(moves).take(START, make_cost(), 3.0)
    assert taken == moves[:1]
    assert rest.moves == moves[1:]
    rest, after, _ = rest.take(after, make_cost(), 99.0)
    in_order = START
    for move in moves:
        in_order = move.apply(in_order)
    assert after == in_order
    assert rest.moves == ()


def test_the_queue_drops_what_has_become_invalid_and_keeps_what_waits_for_another():
    cost = make_cost()
    # Expert 1 has one slot left, and nothing before would give it another.
    rest, after, taken = MoveQueue((Shrink(2), Shrink(3))).take(START, cost, 9.0)
    assert taken == (Shrink(2),)
    assert rest.moves == ()
    # Here an expansion that waits for its budget comes first.
    moves = (Replace(3, 4), Replace(1, 7), Shrink(2), Shrink(3))
    assert MoveQueue(moves).take(START, cost, 8.0)[2] == moves
    rest, after, taken = MoveQueue(moves).take(START, cost, 1.0)
    assert taken == moves[:1]
    assert rest.moves == moves[1:]
    assert rest.take(after, cost, 1.0)[2] == rest.moves


def test_the_queue_ends_where_the_plan_does_whatever_the_budget():
    """Here each of three replicas of expert 3 moves, and one of them must not be the last."""
    before = Placement(np.array([[3, 3], [0, 2], [3, 1]]), 4)
    planned = Placement(np.array([[2, 0], [1, 2], [1, 3]]), 4)
    links = Switched(node=3, local=1e9, remote=1e8)
    cost = CostModel(
        tokens_per_second=1e5,
        bandwidth=links.bandwidth(3),
        wires=links,
        token_bytes=1.0,
        gradient_bytes=1.0,
        state_bytes=1e6,
    )
    for budget in (1e-9, 1.1e-3, 2.1e-3):
        queue, placement = MoveQueue(find_moves(before, planned)), before
        while queue.moves:
            queue, placement, _ = queue.take(placement, cost, budget)
        assert placement == planned


def test_moves_are_counted():
    assert count_moves((Replace(0, 3), Expand(1, 2), Migrate(0, 1), Shrink(4))) == 4


def test_after_a_plan_without_moves_it_rests():
    # Four experts in four slots: nothing can move for less than it costs, whatever the loads.
    start, loads = Placement([[0], [1], [2], [3]], 4), np.tile(np.array([97, 1, 1, 1]), (4, 1))
    scheduler = Scheduler(maker=_maker(), patience=3)
    state, planned = State(start), []
    for _ in range(9):
        state, decision = scheduler.step(state, loads)
        planned.append(decision.plan is not None)
    assert planned == [True, False, False, False] * 2 + [True]
    assert state.placement == start
