"""No token is lost, at any load; oracles: one device, no capacity, and the step of train.step."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.sbp.params import ShardingParams, ZeRO
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.padded import Padded
from lingvo_moe.testing.regression import (
    BATCHES,
    Regression,
    counting_traces,
    numbers,
)
from lingvo_moe.training.step import TrainState

ON_RUNGS = Padded()


def train(runtime):
    runtime.initialize(3)
    return [runtime.train(one) for one in BATCHES]


@functools.cache
def unlimited(groups):
    """Losses and state without a capacity; the balance loss knows groups."""
    runtime = Local(task := Regression(Ragged(), groups), task.step())
    metrics = train(runtime)
    return [float(m.nll) for m in metrics], numbers(runtime.state())


@functools.cache
def on_rungs():
    """Metrics and state of training, and how often rungs were traced in two rounds of it."""
    runtime = Local(task := Regression(ON_RUNGS), task.step())
    with counting_traces() as traced:
        metrics = train(runtime)
        state = {name: np.asarray(value) for name, value in runtime.state().items()}
        for one in BATCHES:
            runtime.train(one)
    return metrics, state, [traced[rung.dispatcher] for rung in task.rungs]


def test_training_is_that_without_a_capacity():
    metrics, got, _ = on_rungs()
    losses, state = unlimited(groups=2)
    np.testing.assert_allclose([m.nll for m in metrics], losses, rtol=1e-5)
    assert sum(float(m.dropped + m.lost) for m in metrics) == 0
    for name, value in state.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_rungs_follow_the_load():
    """64 tokens, 2 choices, 4 experts: 32 at balance, so rooms 40, 50, 63, 64, 64, ….

    With all tokens alike two experts get 64 in each group: rung 3, and no higher.
    """
    metrics, _, traced = on_rungs()
    assert metrics[2].needed_rung == 3
    assert all(m.needed_rung <= m.rung for m in metrics)
    assert metrics[2].retries == 1  # on a lower rung it was tried, on the third it was done
    assert max(traced) == 1
    assert not any(traced[4:])


def test_a_step_without_room_leaves_the_state_alone():
    task = Regression(ON_RUNGS)
    lowest = task.step().on_rungs[0]
    theta = init_theta(task.weights(), 1)
    slots = init_theta(lowest.optimizer.slots(task.weights()), 1)
    before = [tf.constant(0, tf.int64), theta, slots]
    skewed = NestedMap(inputs=tf.constant(BATCHES[2]["inputs"]))
    after, metrics = lowest(TrainState(*before), skewed)
    assert metrics.needed_rung == 3
    # Two experts have room for 40 of 64 in each of two groups.
    assert metrics.lost == 2 * 2 * 24
    for new, old in zip(tf.nest.flatten(list(after)), tf.nest.flatten(before), strict=True):
        np.testing.assert_array_equal(new, old)


def test_the_neediest_micro_batch_counts():
    """Every second row is in the first of two; all its tokens are alike, the others random.

    A group of 32 tokens: 16 at balance, so rooms 20, 25, 32.
    """
    alike = np.arange(len(BATCHES[0]["inputs"]))[:, None, None] % 2 == 0
    inputs = np.where(alike, BATCHES[2]["inputs"], BATCHES[0]["inputs"])
    lowest = Regression(ON_RUNGS).step(micro_batches=2).on_rungs[0]
    theta = init_theta(lowest.task.weights(), 1)
    slots = init_theta(lowest.optimizer.slots(lowest.task.weights()), 1)
    state = TrainState(tf.constant(0, tf.int64), theta, slots)
    assert lowest(state, NestedMap(inputs=tf.constant(inputs)))[1].needed_rung == 2


@pytest.mark.slow
def test_a_resumed_run_is_the_whole_run():
    runtime = Local(task := Regression(ON_RUNGS), task.step())
    runtime.initialize(3)
    for one in BATCHES[:3]:
        runtime.train(one)
    saved = {name: np.array(value) for name, value in runtime.state().items()}
    runtime.initialize(9)
    runtime.restore(saved)
    got = [runtime.train(one) for one in BATCHES[3:]]
    metrics, state, _ = on_rungs()
    assert [m.rung for m in got] == [m.rung for m in metrics[3:]]
    for name, value in state.items():
        np.testing.assert_array_equal(runtime.state()[name], value, name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dropless(factors=(1.0, 1.0)), r"must be positive and ascending, got \(1.0, 1.0\)"),
        (lambda: Dropless(factors=(0.0, 1.0)), r"factors must be > 0 or None, got"),
        (lambda: Dropless(factors=(1.0,), rung=2), "rung must be from 0 to 1, .* got 2"),
    ],
)
def test_bad_ladders(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Experts cut over devices; and cut at rest alone, gathered when a step begins.
MESHES = {"data:2,expert:4": ShardingParams(), "data:2": ZeRO()}


@functools.cache
def on_eight_devices():
    return run_on(8, __file__)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.slow
def test_many_devices_train_like_one_without_a_capacity(mesh):
    report = on_eight_devices()[mesh]
    losses, state = unlimited(groups=8)
    np.testing.assert_allclose(report["losses"], losses, rtol=1e-5)
    assert report["dropped"] == 0
    assert len(set(report["rungs"])) > ("expert" in mesh)
    for name, value in state.items():
        np.testing.assert_allclose(report["state"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_when_every_rung_is_warm_nothing_is_compiled(mesh):
    report = on_eight_devices()[mesh]
    assert report["compiled_at_first"] > 0
    assert report["compiled_later"] == 0


def main():
    """Trains on meshes; counts what XLA compiles in the first round of batches and the second."""
    import jax

    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    report = {}
    for mesh, sharding in MESHES.items():
        task, shape = Regression(Dropless(), groups=8), parse_mesh(mesh)
        devices = jax.devices()[: int(np.prod(shape.shape))]
        runtime = Spmd(task, task.step(), Layout(shape, sharding, devices))
        metrics = train(runtime)
        before, state = len(compiled), numbers(runtime.state())
        for one in BATCHES:
            runtime.train(one)
        report[mesh] = {
            "losses": [float(m.nll) for m in metrics],
            "dropped": sum(float(m.dropped) for m in metrics),
            "rungs": [float(m.needed_rung) for m in metrics],
            "state": {name: value.tolist() for name, value in state.items()},
            "compiled_at_first": before,
            "compiled_later": len(compiled) - before,
        }
        compiled.clear()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
