"""Tests of policies: each by hand on a small case, and properties of all of them."""

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads
from experiments.placement.policies import (
    Flex,
    Literal,
    Oracle,
    Shadowing,
    StaticExpertParallel,
    StrictReassignment,
    home_devices,
)
from lingvo_moe.flexmoe.cost import balance_ratio
from lingvo_moe.flexmoe.placement import Placement, Replace
from lingvo_moe.testing.placements import make_cost

LOADS = np.array([[6, 2], [5, 3]])  # two devices, two experts: 11 and 5


def _once(policy, loads=LOADS, slots=2, **changes):
    cost = make_cost(len(loads), **changes)
    return policy.step(cost, policy.start(cost, slots, loads.shape[1]), loads)[1]


def test_homes_by_hand():
    assert home_devices(2, 4).tolist() == [[0, 0, 1, 1]] * 2
    # Four devices, two experts: devices 0, 1 and devices 2, 3 hold both, each group for itself.
    assert home_devices(4, 2).tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_static_with_capacity_by_hand():
    # 8 tokens of each source, 2 experts: 4 rows each. 6 and 5 become 4; 2 and 3 are padded.
    outcome = _once(StaticExpertParallel())
    assert outcome.flow.tolist() == [[[4, 0], [4, 0]], [[0, 4], [0, 4]]]
    assert outcome.counts.tolist() == [[1, 0], [0, 1]]
    assert outcome.handled == 4 + 2 + 4 + 3
    assert _once(StaticExpertParallel(capacity_factor=1.5)).handled == 16


def test_static_without_limit_by_hand():
    outcome = _once(StaticExpertParallel(capacity_factor=None))
    assert outcome.flow.tolist() == [[[6, 0], [5, 0]], [[0, 2], [0, 3]]]
    assert outcome.handled == 16


def test_strict_re_assignment_by_hand():
    # Nine and eight tokens: 5 + 4 (the odd one to the source's own turn), 4 + 4.
    outcome = _once(StrictReassignment(), np.array([[7, 2], [5, 3]]))
    assert outcome.flow.tolist() == [[[5, 0], [4, 0]], [[0, 4], [0, 4]]]
    assert outcome.handled == 5 + 2 + 4 + 3


def test_shadowing_by_hand():
    # Without shadows: 11 tokens on device 0, 5 of them from device 1: 0.11 + 4 · 5 / 40 s, of 1
    # byte. Shadowed, device 0 has 6 and what is the other's none; synchronising takes 2 s with 8
    # bytes.
    dear = _once(Shadowing())
    assert dear.counts.tolist() == [[1, 0], [0, 1]]
    cheap = _once(Shadowing(), gradient_bytes=0.1)  # 0.025 s
    assert cheap.flow[0].tolist() == [[6, 0], [0, 5]]
    assert cheap.counts.tolist()[0] == [1, 1]
    # Expert 1 as well: then no token travels: 0.08 + 2 · 0.025 against 0.06 + 0.025 + 0.05 + ….
    assert cheap.flow[1].tolist() == [[2, 0], [0, 3]]
    assert cheap.handled == 16


def test_flex_decides_by_the_past_and_the_oracle_by_the_present():
    rng = np.random.default_rng(0)
    cost = make_cost(4, token_bytes=0.0, gradient_bytes=0.0, state_bytes=1e-3)
    loads = rng.poisson([400, 20, 20, 20], (4, 4))
    for policy, first in ((Flex(copies=9), "unbalanced"), (Oracle(), "balanced")):
        state = policy.start(cost, 4, 4)
        ratios = []
        for _ in range(3):
            state, outcome = policy.step(cost, state, loads)
            ratios.append(balance_ratio(outcome.flow.sum(axis=(0, 1))))
        assert (ratios[0] < 1.3) == (first == "balanced")
        assert ratios[2] < 1.25
    assert outcome.adjustment_seconds == 0


def test_the_paper_s_search_by_hand():
    free = {"token_bytes": 0.0, "gradient_bytes": 0.0, "state_bytes": 0.0}
    # 90 tokens and 10: a slot of the second for the first, which then has no further slot to get.
    start, loads = Placement([[0, 0], [1, 1]], 2), np.array([[45, 5], [45, 5]])
    plan = Literal(cost=make_cost(2, **free)).plan(loads, start)
    assert plan.moves == (Replace(0, 2),)
    # Two devices are equally busy, so no single move makes the busiest one faster.
    start, loads = Placement([[0, 0], [1, 1], [2, 2], [3, 3]], 4), np.tile([100, 100, 4, 4], (4, 1))
    found = [
        len(Literal(cost=make_cost(4, **free), changes=count).plan(loads, start).moves)
        for count in range(3)
    ]
    assert found[:2] == [0, 0]
    assert found[2] > 0


@pytest.mark.parametrize(
    "policy",
    [
        StaticExpertParallel(),
        StaticExpertParallel(capacity_factor=None),
        StrictReassignment(),
        Shadowing(),
        Flex(),
        Oracle(),
    ],
)
def test_what_holds_for_all(policy):
    trace = SyntheticLoads(devices=4, experts=8, top=2, steps=8, tokens=128).generate()
    cost = make_cost(4, token_bytes=1e-3, gradient_bytes=0.05, state_bytes=0.5)
    state = policy.start(cost, 4, 8)
    for loads in trace.loads[:, 0]:
        state, outcome = policy.step(cost, state, loads)
        assert outcome.counts.sum(axis=1).min() >= 1
        assert not outcome.flow.sum(axis=1)[outcome.counts == 0].any()
        assert outcome.handled <= loads.sum()
        if not isinstance(policy, StaticExpertParallel) or policy.capacity_factor is None:
            assert outcome.flow.sum() == loads.sum()
