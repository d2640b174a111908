"""Experts move with skewed loads that drift, and the results of the model do not change."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.rebalance import Rebalanced
from lingvo_moe.testing.drifting_load import (
    EXPERTS,
    MODEL,
    TABLES,
    assert_balances_and_learns,
    batch,
    local,
    rebalanced,
    scheduler,
    start,
)


@pytest.mark.slow
def test_experts_follow_a_skewed_and_drifting_load():
    runtime = rebalanced(local())
    metrics = [runtime.train(batch(step)) for step in range(40)]
    assert_balances_and_learns(metrics)
    assert sum(m.moves[0] for m in metrics[:2]) > 0
    assert sum(m.moves[0] for m in metrics[20:]) > 0  # they drift on
    moved = [m.moves[0] > 0 for m in metrics]
    assert [m.move_seconds[0] > 0 for m in metrics] == moved
    Placement(np.asarray(runtime.state()["theta/placement"]), EXPERTS)


@pytest.mark.slow
def test_a_resumed_run_moves_as_the_whole_one():
    whole, second = rebalanced(local()), rebalanced(local())
    for step in range(8):
        if step == 3:
            second.restore({name: np.array(value) for name, value in whole.state().items()})
        whole.train(batch(step))
    for step in range(3, 8):
        second.train(batch(step))
    state = second.state()
    assert set(state) == set(whole.state())
    for name, value in whole.state().items():
        np.testing.assert_array_equal(state[name], value, name)


@pytest.mark.slow
def test_a_checkpoint_without_a_scheduler_starts_one():
    static = start(local(), 4 * np.eye(MODEL, dtype=np.float32))
    runtime = Rebalanced(local(), TABLES, scheduler())
    runtime.restore(static.state())
    assert runtime.train(batch(0)).moves[0] > 0
