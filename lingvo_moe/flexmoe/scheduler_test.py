"""Tests of triggers and the scheduler: by hand."""

import numpy as np

from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.scheduler import Scheduler, State
from lingvo_moe.testing.placements import make_cost


def test_planning_begins_above_the_threshold_and_ends_at_the_release():
    scheduler = Scheduler(
        maker=_maker(2, state_bytes=1e9),
        threshold=1.2,
        release=1.1,
        smoothing=0.0,
    )
    state, said = State(Placement([[0], [1]], 2)), []
    for busiest in (115, 125, 115, 108, 115, 121):  # of a mean of 100
        state, _ = scheduler.step(state, np.array([[busiest, 200 - busiest], [0, 0]]))
        said.append(state.active)
    # 115 is below the threshold at first; after 125 it is above the release; 108 is below it.
    assert said == [False, True, True, False, False, True]


def _maker(devices=4, **changes):
    return PolicyMaker(cost=make_cost(devices, **changes))


def test_after_a_plan_without_moves_it_rests():
    # Four experts in four slots: nothing can move for less than it costs, whatever the loads.
    start, loads = Placement([[0], [1], [2], [3]], 4), np.tile(np.array([97, 1, 1, 1]), (4, 1))
    scheduler = Scheduler(maker=_maker(), patience=3)
    state, planned = State(start), []
    for _ in range(9):
        state, decision = scheduler.step(state, loads)
        planned.append(decision.plan is not None)
    assert planned == [True, False, False, False] * 2 + [True]
    assert state.placed == start


def test_a_plan_is_made_over_several_steps():
    start, loads = Placement.even(4, 2, 4), np.tile(np.array([91, 3, 3, 3]), (4, 1))
    scheduler = Scheduler(
        maker=_maker(token_bytes=0.0, gradient_bytes=0.0, state_bytes=0.0), copies=1
    )
    state, made = State(start), 0
    for _ in range(6):
        state, decision = scheduler.step(state, loads)
        assert len(decision.copies) <= 1
        made += len(decision.copies)
    assert made > 1
    assert state.placed == state.plan != start
