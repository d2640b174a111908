"""Tests of the simulator: a trace timed by hand, and the paper's order of policies."""

import dataclasses

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads
from experiments.placement.policies import Flex, Oracle, Shadowing, StaticExpertParallel
from experiments.placement.simulate import (
    POLICIES,
    replay_all,
    replay_trace,
    speed_up,
    summarize_replay,
)
from lingvo_moe.placement.scheduler import MaxTrigger
from lingvo_moe.placement.traces import Trace
from lingvo_moe.testing.placements import make_cost


def _by_hand():
    """Two steps of one layer: 11 + 5 tokens on two devices, then the other way around."""
    loads = np.array([[[[6, 2], [5, 3]]], [[[2, 6], [3, 5]]]])
    return Trace(loads=loads, steps=np.array([10, 20]), layers=("a",))


def test_static_by_hand():
    # Step 1, device 0: 11 tokens, 5 of them from device 1: 0.11 + 4 · 5 / 40. Step 2, device 1: 11
    # tokens, 6 of them from device 0.
    run = replay_trace(_by_hand(), StaticExpertParallel(capacity_factor=None), make_cost(2), 1)
    np.testing.assert_allclose(run.seconds[:, 0], [0.61, 0.71])
    np.testing.assert_allclose(run.parts[:, 0], [[0.11, 0.5, 0], [0.11, 0.6, 0]])
    np.testing.assert_allclose(run.ratio[:, 0], 11 / 8)
    mean = summarize_replay(run)
    assert mean.step_seconds == pytest.approx(0.66)
    assert mean.token_efficiency == 1
    assert mean.expert_efficiency == pytest.approx(16 / 22)
    assert mean.nanoseconds_a_choice == pytest.approx(0.66e9 / 16)
    assert summarize_replay(run, skip=1).step_seconds == pytest.approx(0.71)


def test_capacity_by_hand():
    # Four rows from each source: 8 rows a device, 4 of them sent: 0.08 + 4 · 4 / 40. 13 of 16 fit.
    run = replay_trace(_by_hand(), StaticExpertParallel(), make_cost(2), 1)
    mean = summarize_replay(run)
    assert mean.step_seconds == pytest.approx(0.48)
    assert mean.token_efficiency == mean.expert_efficiency == pytest.approx(13 / 16)
    other = summarize_replay(
        replay_trace(_by_hand(), StaticExpertParallel(capacity_factor=None), make_cost(2), 1)
    )
    # 0.66 / 0.48 faster a step, less by 13 / 16 if dropped choices have to be made up for.
    assert speed_up(mean, other) == pytest.approx((0.66 / 0.48, 0.66 / 0.48 * 13 / 16))
    assert speed_up(mean, other, 1.0)[0] == pytest.approx(1.66 / 1.48)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_layer_of_fewer_experts_is_replayed_with_its_own(policy):
    rng = np.random.default_rng(0)
    loads = rng.integers(1, 99, (4, 2, 2, 4), dtype=np.int32)
    loads[:, 0, :, 2:] = 0
    steps, layers = np.arange(4), ("a", "b")
    both = Trace(loads=loads, steps=steps, layers=layers, experts=(2, 4))
    cost = make_cost(2)
    found = replay_trace(both, policy, cost, 2)
    for layer, experts in enumerate(both.experts):
        own = Trace(loads=loads[:, [layer], :, :experts], steps=steps, layers=("c",))
        alone = replay_trace(own, policy, cost, 2)
        for name in ("seconds", "moves", "ratio", "rows", "handled"):
            result, expected = getattr(found, name)[:, layer], getattr(alone, name)[:, 0]
            np.testing.assert_array_equal(result, expected)
    assert found.replicas.shape == (4, 2)


def test_layers_add_up():
    one = _by_hand()
    two = dataclasses.replace(one, loads=np.concatenate([one.loads] * 2, axis=1), layers=("a", "b"))
    cost = make_cost(2)
    first, second = (
        summarize_replay(replay_trace(trace, StaticExpertParallel(), cost, 1))
        for trace in (one, two)
    )
    assert second.step_seconds == pytest.approx(2 * first.step_seconds)
    assert second.nanoseconds_a_choice == pytest.approx(first.nanoseconds_a_choice)


def test_the_order_of_policies_on_skewed_loads():
    # Computation and exchange alike, synchronising all devices a sixth of a balanced step.
    trace = SyntheticLoads(devices=16, experts=32, top=5, steps=40, tokens=1024, seed=1).generate()
    cost = make_cost(16, 8, token_bytes=0.01, gradient_bytes=1.0, state_bytes=10.0)
    policies = (
        StaticExpertParallel(),
        StaticExpertParallel(capacity_factor=None),
        Shadowing(),
        Flex(),
        Flex(trigger=MaxTrigger(99.0, 99.0)),
        Oracle(),
    )
    seen = []
    runs = replay_all(trace, cost, 4, policies, lambda *at: seen.append(at))
    capacity, free, shadowing, flex, frozen, oracle = (
        summarize_replay(run, skip=20) for run in runs
    )
    assert oracle.step_seconds <= flex.step_seconds < shadowing.step_seconds < free.step_seconds
    assert flex.token_efficiency == 1.0 > capacity.token_efficiency
    assert flex.expert_efficiency > max(capacity.expert_efficiency, shadowing.expert_efficiency)
    assert flex.nanoseconds_a_choice < capacity.nanoseconds_a_choice
    assert runs[3].ratio[0, 0] > 2 > 1.25 > flex.worst_ratio
    assert runs[3].moves.sum() > 0 == runs[4].moves.sum()
    assert frozen.ratio > 2
    assert runs[3].replicas.sum(axis=1).tolist() == [64] * 40
    assert seen[0] == ("static, capacity 1", 1, 40)
    assert seen[-1] == ("oracle", 40, 40)


def test_errors():
    with pytest.raises(ValueError, match="2 source devices, the cost model 4; see "):
        replay_trace(_by_hand(), Flex(), make_cost(4), 2)
    run = replay_trace(_by_hand(), StaticExpertParallel(), make_cost(2), 1)
    with pytest.raises(ValueError, match="--skip=2 leaves none of 2 steps"):
        summarize_replay(run, skip=2)
