"""Tests of the simulator: loads, a trace timed by hand, and the paper's order of policies."""

import dataclasses

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads, on_devices, scaled
from experiments.placement.policies import Flex, Oracle, Shadowing, StaticExpertParallel
from experiments.placement.simulate import (
    POLICIES,
    TRIGGERS,
    replay_trace,
    speed_up,
    summarize_replay,
    table,
)
from experiments.placement.traces import Trace
from lingvo_moe.testing.placements import make_cost


def _trace(loads, **changes):
    loads = np.asarray(loads)
    fields = {"steps": np.arange(len(loads)), "layers": ("a",) * loads.shape[1]}
    return Trace(loads=loads, **(fields | changes))


def _by_hand():
    """Two steps of one layer: 11 + 5 tokens on two devices, then the other way around."""
    return _trace([[[[6, 2], [5, 3]]], [[[2, 6], [3, 5]]]])


def test_devices_merge_and_split_by_hand():
    # Two sources. As one: sums. As four: 5 = 3 + 2; then 4 = 2 + 2, the odd one's turn being over.
    trace = _trace([[[[5, 4], [1, 2]]]])
    assert on_devices(trace, 1).loads.tolist() == [[[[6, 6]]]]
    assert on_devices(trace, 2).loads.tolist() == trace.loads.tolist()
    assert on_devices(trace, 4).loads.tolist() == [[[[3, 2], [2, 2], [1, 1], [0, 1]]]]
    # Twelve choices on two sources are six on the mean; to fifteen, two and a half times as many.
    assert scaled(trace, 15).loads.tolist() == [[[[12, 10], [2, 5]]]]


def test_the_generator_is_as_skewed_as_the_paper_says_and_drifts_smoothly():
    loads = SyntheticLoads(devices=8, steps=200, tokens=16384).generate().loads[:, 0].sum(axis=1)
    shares = loads / loads.sum(axis=1, keepdims=True)
    top = np.sort(shares, axis=1)[:, -10:].sum(axis=1)
    assert 0.72 < top.mean() < 0.78
    assert np.ptp(top) < 0.05
    # From step to step less than 1 % of choices change the expert, over 200 steps a quarter.
    change = np.abs(np.diff(shares, axis=0)).sum(axis=1) / 2
    assert change.max() < 0.01
    assert np.abs(shares[-1] - shares[0]).sum() / 2 > 0.25


def test_static_by_hand():
    # Device 0, then 1: 11 tokens. The busiest pair has 5, then 6 of them; a pair's buffer has room
    # for 8 / 2 · 1.25², 7 tokens, in 4 exchanges.
    run = replay_trace(_by_hand(), StaticExpertParallel(capacity_factor=None), make_cost(2), 1)
    np.testing.assert_allclose(run.parts[:, 0], [[0.11, 0.7, 0]] * 2)
    np.testing.assert_allclose(run.ratio[:, 0], 11 / 8)
    mean = summarize_replay(run)
    assert mean.step_seconds == pytest.approx(0.81)
    assert mean.expert_efficiency == pytest.approx(16 / 22)
    # Four rows from each source, 8 a device; buffers of 5: 0.08 + 4 · 5 / 40. 13 choices of 16 fit.
    limited = summarize_replay(replay_trace(_by_hand(), StaticExpertParallel(), make_cost(2), 1))
    assert limited.step_seconds == pytest.approx(0.58)
    assert limited.token_efficiency == limited.expert_efficiency == pytest.approx(13 / 16)
    # 0.81 / 0.58 faster a step, less by 13 / 16 if dropped choices have to be made up for.
    assert speed_up(limited, mean) == pytest.approx((0.81 / 0.58, 0.81 / 0.58 * 13 / 16))


@pytest.mark.parametrize("policy", [*POLICIES, TRIGGERS[-1]], ids=str)
def test_layers_are_replayed_alone_with_their_own_experts(policy):
    rng = np.random.default_rng(0)
    loads = rng.integers(1, 99, (4, 2, 2, 4), dtype=np.int32)
    loads[:, 0, :, 2:] = 0
    cost = make_cost(2)
    found = replay_trace(_trace(loads, layers=("a", "b"), experts=(2, 4)), policy, cost, 2)
    for layer, experts in enumerate((2, 4)):
        alone = replay_trace(_trace(loads[:, [layer], :, :experts]), policy, cost, 2)
        for name in ("parts", "moves", "ratio", "rows", "handled"):
            np.testing.assert_array_equal(
                getattr(found, name)[:, layer], getattr(alone, name)[:, 0]
            )


def test_the_order_of_policies_on_skewed_loads():
    # Computation and exchange alike, synchronising all devices a sixth of a balanced step.
    trace = SyntheticLoads(devices=16, experts=32, top=5, steps=40, tokens=1024, seed=1).generate()
    cost = make_cost(16, 8, token_bytes=0.01, gradient_bytes=1.0, state_bytes=3.0)
    policies = (
        StaticExpertParallel(),
        StaticExpertParallel(capacity_factor=None),
        Shadowing(),
        Flex(),
        Flex(interval=99),
        Oracle(),
    )
    runs = [replay_trace(trace, policy, cost, 4) for policy in policies]
    means = [summarize_replay(run, skip=20) for run in runs]
    capacity, free, shadowing, flex, frozen, oracle = means
    assert max(flex.step_seconds, shadowing.step_seconds) < free.step_seconds
    assert oracle.ratio < flex.ratio < shadowing.ratio < free.ratio
    assert flex.token_efficiency == 1.0 > capacity.token_efficiency
    assert flex.expert_efficiency > max(capacity.expert_efficiency, shadowing.expert_efficiency)
    assert speed_up(flex, capacity)[1] > 1
    assert runs[3].ratio[0, 0] > 2 > 1.5 > flex.worst_ratio
    assert runs[3].moves[20:].sum() > 0 == runs[4].moves[20:].sum()
    assert frozen.ratio > flex.ratio
    rows = table([dataclasses.replace(mean, moves=1.25) for mean in means]).rows
    assert [row[0] for row in rows][:2] == ["static, capacity 1", "static, no limit"]
    assert rows[0][-2:] == ("1.00", "1.00")
