"""Tests of triggers by hand, and of the package's own on loads that drift."""

import dataclasses

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads
from experiments.placement.triggers import IntervalTrigger
from lingvo_moe.placement.placement import Placement
from lingvo_moe.placement.policy_maker import PolicyMaker
from lingvo_moe.placement.scheduler import MaxTrigger, Scheduler, State
from lingvo_moe.testing.placements import make_cost


def test_interval_trigger():
    fired = [IntervalTrigger(3).should_plan(np.array([9, 1]), step, True) for step in range(7)]
    assert fired == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("seed", range(3))
def test_brought_down_within_20_steps_and_held_under_drift(seed):
    loads = SyntheticLoads(
        devices=8, experts=16, top=4, steps=200, tokens=512, memory=150.0, seed=seed
    )
    trace = loads.generate().loads[:, 0]
    # Computation bounds the step; a copy within a node takes 2 s, a fifth of a step.
    cost = make_cost(
        8, token_bytes=1e-3, gradient_bytes=0.1, state_bytes=80.0, tokens_per_second=100.0
    )
    scheduler = Scheduler(maker=PolicyMaker(cost=cost), trigger=MaxTrigger(1.15, 1.1))
    state, ratios, moved = State(Placement.even(8, 4, 16)), [], 0
    for step_loads in trace:
        state, decision = scheduler.step(state, step_loads)
        ratios.append(decision.ratio)
        moved += bool(decision.moves)
    assert ratios[0] > 2
    assert max(ratios[20:]) < 1.25
    assert 1 < moved < 60  # now and then, not at every step
    # Without moves after step 20 the balance is lost.
    state = State(Placement.even(8, 4, 16))
    for step_loads in trace[:20]:
        state, _ = scheduler.step(state, step_loads)
    frozen = dataclasses.replace(scheduler, trigger=MaxTrigger(99.0, 99.0))
    _, decision = frozen.step(state, trace[-1])
    assert decision.ratio > 1.25
