"""Runs itself in a process of its own, where JAX has eight virtual devices."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.by_node import ByNode
from lingvo_moe.moe.dispatch import Gather
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.moe_on_mesh import MoeOnMesh

BATCH, LENGTH, MODEL, EXPERTS, GROUPS, K = 16, 6, 64, 16, 8, 4
NODES, KEPT = 8, 2
SIZE = BATCH * LENGTH // GROUPS
# One node a device; two; four, with tensor parallel experts.
MESHES = ({"expert": 8}, {"data": 2, "expert": 4}, {"data": 2, "expert": 2, "model": 2})
BY_NODE = ByNode(nodes=NODES, kept=KEPT)
SPLIT = ByNode(nodes=4, kept=2, groups=GROUPS, capacity_factor=4.0)


def layer(dispatcher, factor):
    policy = dataclasses.replace(dispatcher, groups=GROUPS, capacity_factor=factor)
    gating = TopK(k=K, limit=NodeLimited(nodes=NODES, kept=KEPT))
    params = MoEParams(
        num_experts=EXPERTS,
        gating=gating,
        training=policy,
    )
    return MoE(model_dim=MODEL, hidden_dim=8, params=params)


def inputs():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(BATCH, LENGTH, MODEL)).astype(np.float32)
    return values, (rng.random((BATCH, LENGTH)) < 0.9).astype(np.int32)


def gradients(moe, theta, values, segments):
    """Outputs, lost choices, and the gradients of a weighted sum of the outputs."""
    with tf.GradientTape() as tape:
        theta.map(tape.watch)
        tape.watch(values)
        given = Tokens(segments, segments), Context(tf.constant([1, 2]))
        output = moe.fprop(theta, values, *given)
        total = tf.reduce_sum(output.outputs * tf.cos(tf.range(MODEL, dtype=tf.float32)))
    by_theta, by_values = tape.gradient(total, [theta, values])
    results = {"outputs": output.outputs, "values": by_values, **dict(by_theta.flatten())}
    return results | {"lost": output.stats.get("lost", tf.constant(0.0))}


def theta():
    return init_theta(layer(Gather(), 4.0).weights(), 7)


@functools.cache
def on_one_device(dispatcher, factor):
    values, segments = inputs()
    return gradients(layer(dispatcher, factor), theta(), tf.constant(values), segments)


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        # float32 sums of some dozens of terms of order 1 in another order.
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("factor", [None, 16.0])
def test_with_room_for_all_it_is_gather(factor):
    """A capacity of 16.0 has room for all tokens of a group at each expert, and at each node."""
    assert_equal(on_one_device(BY_NODE, factor), on_one_device(Gather(), factor))
    assert on_one_device(BY_NODE, factor)["lost"] == 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithRoom(Gather):
    """Gather, of the choices that nodes have room for: a plain loop."""

    room: int

    def dispatch(self, inputs, routing, capacity, experts):
        computed = _computed(routing, self.room)
        weight = tf.where(computed, routing.weight, 0.0)
        kept = routing._replace(dispatched=tf.constant(computed), weight=weight)
        done = super().dispatch(inputs, kept, capacity, experts)
        missing = np.sum(routing.dispatched.numpy() & ~computed)
        return done._replace(stats=NestedMap(lost=tf.constant(missing, tf.float32)))


def _computed(routing: Routing, room: int) -> np.ndarray:
    """bool [G, S, K]: all first choices queue at their node, then second ones on other nodes, …"""
    expert, taken = routing.expert.numpy(), routing.dispatched.numpy()
    computed = np.zeros_like(taken)
    for group in range(len(expert)):
        queues = [[] for _ in range(NODES)]
        for k in range(K):
            for token in range(SIZE):
                queue = queues[expert[group, token, k] * NODES // EXPERTS]
                if taken[group, token, k] and token not in queue:
                    queue.append(token)
        for token, k in np.ndindex(SIZE, K):
            queue = queues[expert[group, token, k] * NODES // EXPERTS]
            computed[group, token, k] = taken[group, token, k] and token in queue[:room]
    return computed


def test_rows_beyond_the_room_of_a_node_are_lost():
    """C = ceil(4 · 12 / 16) = 3; a node has room for 2 · 3 · 16 / (8 · 4) = 3 rows of a group."""
    found = on_one_device(BY_NODE, 4.0)
    assert_equal(found, on_one_device(_WithRoom(room=3), 4.0))
    assert 5.0 < found["lost"] < 0.2 * BATCH * LENGTH * K


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    moe, given = layer(BY_NODE, 4.0), theta()
    values, segments = (tf.constant(x[:8, :2]) for x in inputs())
    context = Context(tf.constant([1, 2]))

    def objective(part):
        whole = tf.concat([part, values[..., 2:]], axis=-1)
        outputs = moe.fprop(given, whole, Tokens(segments, segments), context).outputs
        return tf.reduce_sum(outputs * tf.cos(tf.range(MODEL, dtype=tf.float32)))

    symbolic, numeric = tf.test.compute_gradient(objective, [values[..., :2]], delta=1e-3)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=5e-3)
    assert np.abs(symbolic[0]).max() > 0.05


@pytest.mark.parametrize("gating", [Top2(), TopK(k=4, limit=NodeLimited(nodes=8, kept=4))], ids=str)
def test_the_gating_must_have_the_same_limit(gating):
    with pytest.raises(ValueError, match=r"needs a gating with the same limit.*kept=2"):
        MoEParams(num_experts=EXPERTS, gating=gating, training=BY_NODE)


@functools.cache
def on_eight_devices():
    return run_on(8, __file__)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", range(len(MESHES)))
def test_numbers_are_those_of_one_device(mesh):
    assert_equal(on_eight_devices()["results"][mesh], on_one_device(BY_NODE, 4.0))


@pytest.mark.slow
def test_it_sends_half_of_the_bytes():
    """KEPT / K of the rows; with each go K places, and K weights, which have a gradient."""
    sent = on_eight_devices()["sent"]
    rows = EXPERTS * 3 * MODEL * 4  # of one group, in each AllToAll
    assert sent[str(Gather())] == 4 * rows
    assert sent[str(BY_NODE)] == 4 * rows * KEPT / K + 3 * 4 * K * NODES * 3
    assert on_eight_devices()["kinds"] == ["all-reduce", "all-to-all"]


@pytest.mark.slow
def test_a_node_of_several_devices_is_refused():
    assert on_eight_devices()["error"] == (
        f"model.moe.training={SPLIT} does not fit a mesh that splits experts into 8 "
        "pieces; set nodes to 8 or a multiple of it, or change the mesh."
    )


def main():
    """The results of all tests that need eight devices, as JSON."""
    from lingvo_moe.runtimes.hlo import collectives, total_bytes

    on_mesh = MoeOnMesh(layer(Gather(), 4.0).weights(), theta(), *inputs())
    results = (*on_mesh.gradients, "lost")

    def compiled(moe, mesh):
        return on_mesh.compile(functools.partial(gradients, moe), results, mesh)

    def error():
        gating = TopK(k=K, limit=NodeLimited(nodes=4, kept=2))
        moe = layer(BY_NODE, 4.0)
        params = dataclasses.replace(moe.params, gating=gating, training=SPLIT)
        try:
            compiled(dataclasses.replace(moe, params=params), MESHES[0])
        except ValueError as failed:
            return str(failed)

    programs = [compiled(layer(BY_NODE, 4.0), mesh) for mesh in MESHES]
    other = compiled(layer(Gather(), 4.0), MESHES[0])
    found = {BY_NODE: programs[0], Gather(): other}
    sent = {str(d): total_bytes(collectives(p.as_text())) for d, p in found.items()}
    report = {
        "sent": {name: of["all-to-all"] for name, of in sent.items()},
        "kinds": sorted(sent[str(BY_NODE)]),
        "results": [on_mesh.run(program) for program in programs],
        "error": error(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
