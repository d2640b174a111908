"""With any placement the results are those of one replica of each expert and no capacity."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.placement import EMPTY, Placement, relocation
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import merge_trees
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.runtimes.local import Local
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.placements import random_move, random_placement
from lingvo_moe.testing.regression import BATCHES, EXPERTS, Regression, counting_traces, numbers
from lingvo_moe.training.replicas import copies, sum_replicas

DEVICES, PER_DEVICE, GROUPS = 4, 3, 8
SLOTS = VExperts(devices=DEVICES, slots_per_device=PER_DEVICE, factors=(0.5,))


def layer(dispatcher, num_experts, groups):
    params = MoEParams(
        num_experts=num_experts,
        gating=TopK(k=min(2, num_experts)),
        training=dataclasses.replace(dispatcher, groups=groups),
    )
    return MoE(model_dim=3, hidden_dim=4, params=params)


def with_gradients(moe, theta, inputs, segments):
    """Outputs, statistics, and gradients of a weighted sum of all elements."""
    learned = NestedMap({name: value for name, value in theta.items() if name != "placement"})
    with tf.GradientTape() as tape:
        learned.map(tape.watch)
        tape.watch(inputs)
        every = (
            merge_trees(learned, NestedMap(placement=theta.placement))
            if "placement" in theta
            else theta
        )
        output = moe.fprop(every, inputs, Tokens(segments, segments), Context(tf.constant([1, 2])))
        total = tf.reduce_sum(tf.sin(output.outputs)) + output.loss
    grads, by_inputs = tape.gradient(total, [learned, inputs])
    return output, grads, by_inputs


@pytest.mark.parametrize("seed", range(8))
def test_any_placement_gives_outputs_and_gradients_of_one_replica(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    devices, per_device = placement.slots.shape
    num_experts, groups = placement.num_experts, 2 * devices
    slots = VExperts(devices=devices, slots_per_device=per_device)
    many, one = (layer(d, num_experts, groups) for d in (slots, Ragged()))
    theta = init_theta(one.weights(), seed)
    flat = placement.slots.ravel()
    # The contents of empty slots are ignored.
    held = theta.experts.map(
        lambda w: tf.where(flat[:, None, None] == EMPTY, 1e3, tf.gather(w, np.maximum(flat, 0)))
    )
    in_slots = NestedMap(theta, experts=held, placement=tf.constant(placement.slots))
    inputs = tf.constant(rng.normal(size=(groups, 5, 3)) + rng.normal(size=3), tf.float32)
    segments = tf.constant(rng.random((groups, 5)) < 0.9, tf.int32)
    expected, grads, by_inputs = with_gradients(one, theta, inputs, segments)
    output, slot_grads, slot_by_inputs = with_gradients(many, in_slots, inputs, segments)
    np.testing.assert_allclose(output.outputs, expected.outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slot_by_inputs, by_inputs, rtol=1e-4, atol=1e-5)
    tables = NestedMap(placement=in_slots.placement)
    by_slot = dict(sum_replicas(slot_grads, tables, many.weights()).flatten())
    assert set(by_slot) == {name for name, _ in grads.flatten()}
    for name, grad in grads.flatten():
        if "experts/" in name:
            filled = flat[:, None, None] != EMPTY
            grad = tf.where(filled, tf.gather(grad, np.maximum(flat, 0)), 0.0)
        np.testing.assert_allclose(by_slot[name], grad, rtol=1e-4, atol=1e-5, err_msg=name)
    assert output.stats.lost == 0
    # Every choice arrives, at no slot more than its share.
    dispatched = np.asarray(output.routing.dispatched)
    loads = np.bincount(np.asarray(output.routing.expert)[dispatched], minlength=num_experts)
    np.testing.assert_array_equal(output.stats.source_load.numpy().sum(axis=0), loads)


@functools.cache
def one_replica():
    """Losses of training without slots, and the state after it."""
    task = Regression(Ragged(), groups=GROUPS)
    runtime = Local(task, task.step(clip_norm=0.1))
    runtime.initialize(3)
    metrics = [runtime.train(batch) for batch in BATCHES]
    evaluated = float(runtime.evaluate(BATCHES[0]).nll)
    return (
        [[float(m.nll), float(m.grad_norm)] for m in metrics],
        evaluated,
        numbers(runtime.state()),
    )


def train_with_moves(runtime, seed):
    """Trains, moving experts at random after each step; what was seen, and the last placement."""
    rng = np.random.default_rng(seed)
    placement = Placement.even(DEVICES, PER_DEVICE, EXPERTS)
    runtime.initialize(3)
    seen, retries = [], 0
    for batch in BATCHES:
        metrics = runtime.train(batch)
        retries += float(metrics.get("retries", 0))
        seen.append([float(metrics.nll), float(metrics.grad_norm)])
        before = placement
        for _ in range(4):
            try:
                placement = random_move(rng, placement).apply(placement)
            except ValueError:
                continue
        runtime.relocate("placement", copies(relocation(before, placement)))
    return {
        "seen": seen,
        "evaluated": float(runtime.evaluate(BATCHES[0]).nll),
        "slots": placement.slots.tolist(),
        "retries": retries,
    }


def assert_trained_alike(report, state):
    """One replica's losses, weights and optimizer memory; replicas the same, bit by bit."""
    expected, evaluated, one = one_replica()
    np.testing.assert_allclose(report["seen"], expected, rtol=2e-5)
    np.testing.assert_allclose(report["evaluated"], evaluated, rtol=2e-5)
    placement = Placement(np.array(report["slots"]), EXPERTS)  # every expert has a slot
    np.testing.assert_array_equal(state["theta/placement"], placement.slots)
    flat = placement.slots.ravel()
    for name, value in one.items():
        found = np.asarray(state[name])
        if "/experts/" not in name:
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=name)
            continue
        for expert in range(EXPERTS):
            replicas = found[flat == expert]
            np.testing.assert_allclose(
                replicas[0], value[expert], rtol=1e-4, atol=1e-5, err_msg=name
            )
            for replica in replicas[1:]:
                np.testing.assert_array_equal(replica, replicas[0], name)


def test_any_moves_train_like_one_replica():
    task = Regression(SLOTS, groups=GROUPS)
    runtime = Local(task, task.step(clip_norm=0.1))
    with counting_traces() as traced:
        for seed in range(2):
            report = train_with_moves(runtime, seed)
            assert_trained_alike(report, numbers(runtime.state()))
    assert max(traced[rung.dispatcher] for rung in task.rungs) == 1


def test_slots_begin_as_experts_would():
    one = init_theta(layer(Ragged(), 5, 1).weights(), 7)
    many = init_theta(layer(VExperts(devices=2, slots_per_device=4), 5, 2).weights(), 7)
    even = Placement.even(2, 4, 5)
    np.testing.assert_array_equal(many.placement, even.slots)
    for name, value in many.experts.items():
        np.testing.assert_array_equal(value, one.experts[name].numpy()[even.slots.ravel()], name)


@pytest.mark.parametrize(
    ("devices", "per_device", "groups", "message"),
    [
        (2, 1, 2, "2 devices of 1 slots have no room for 4 experts; raise slots_per_device"),
        (
            4,
            1,
            6,
            "6 groups do not divide evenly into 4 sources .1 along data, 4 devices.; set",
        ),
        (0, 4, 2, "devices must be >= 1, got 0"),
    ],
)
def test_what_does_not_fit(devices, per_device, groups, message):
    def run():
        moe = layer(VExperts(devices=devices, slots_per_device=per_device), 4, groups)
        tokens = Tokens(*[tf.ones([groups, 2], tf.int32)] * 2)
        theta = init_theta(moe.weights(), 1)
        moe.fprop(theta, tf.ones([groups, 2, 3]), tokens, Context(tf.constant([1, 2])))

    with pytest.raises(ValueError, match=message):
        run()


@pytest.mark.parametrize("dispatcher", [SLOTS, Ragged()], ids=["slots", "plain"])
@pytest.mark.slow
def test_a_checkpoint_goes_on_in_other_slots(dispatcher):
    before = Local(task := Regression(dispatcher, groups=GROUPS), task.step())
    before.initialize(3)
    before.train(BATCHES[0])
    other = VExperts(devices=2, slots_per_device=3, factors=())
    after = Local(task := Regression(other, groups=GROUPS), task.step())
    after.restore(before.state())
    for batch in BATCHES[1:3]:
        np.testing.assert_allclose(after.train(batch).nll, before.train(batch).nll, rtol=1e-5)


MESHES = ("data:2,expert:4", "expert:2")


@functools.cache
def on_meshes():
    return run_on(8, __file__)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.slow
def test_many_devices_train_like_one_replica(mesh):
    """The four devices of the placement are as many of the mesh, or two are one."""
    report = on_meshes()[mesh]
    assert_trained_alike(report, report["state"])


@pytest.mark.parametrize("mesh", MESHES[1:])
@pytest.mark.slow
def test_a_placement_restores_onto_another_mesh(mesh):
    """Each mesh evaluates what the first one trained."""
    np.testing.assert_allclose(
        on_meshes()[mesh]["of_first"], on_meshes()[MESHES[0]]["of_first"], rtol=1e-5
    )


@pytest.mark.slow
def test_the_scheduler_gets_the_choices_of_one_place_along_data():
    """Each of two places has all slots, and half of the choices."""
    of_two, of_one = (on_meshes()[mesh]["choices"] for mesh in MESHES)
    assert of_two == of_one / 2


def main():
    """Trains with moves on meshes."""
    import jax

    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    report, first = {}, None
    for text in MESHES:
        mesh = parse_mesh(text)
        # One rung: the ladder is tested elsewhere, and compiling takes long.
        task = Regression(dataclasses.replace(SLOTS, factors=()), groups=GROUPS)
        devices = jax.devices()[: int(np.prod(mesh.shape))]
        runtime = Spmd(task, task.step(clip_norm=0.1), Layout(mesh, devices=devices))
        report[text] = train_with_moves(runtime, 4)
        report[text]["state"] = {n: v.tolist() for n, v in numbers(runtime.state()).items()}
        first = first or {name: np.asarray(value) for name, value in runtime.state().items()}
        runtime.restore(first)
        report[text]["of_first"] = float(runtime.evaluate(BATCHES[0]).nll)
        report[text]["choices"] = float(np.sum(runtime.train(BATCHES[0]).source_load))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
