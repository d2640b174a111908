"""Runs itself in a process of its own, where JAX has eight virtual devices."""

import dataclasses
import functools
import itertools
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.moe_on_mesh import MoeOnMesh

pytestmark = pytest.mark.slow

BATCH, LENGTH, MODEL, EXPERTS = 16, 6, 4, 8
DISPATCHERS = (Einsum(), Gather())
MESHES = ({"expert": 8}, {"data": 2, "expert": 2, "model": 2})


def layer(dispatcher):
    params = MoEParams(num_experts=EXPERTS, training=dataclasses.replace(dispatcher, groups=8))
    return MoE(model_dim=MODEL, hidden_dim=8, params=params)


def inputs():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(BATCH, LENGTH, MODEL)).astype(np.float32)
    return values, (rng.random((BATCH, LENGTH)) < 0.9).astype(np.int32)


def forward(dispatcher, theta, values, segments):
    moe = layer(dispatcher)
    output = moe.fprop(theta, values, Tokens(segments, segments), Context(tf.constant([1, 2])))
    return {"outputs": output.outputs}


def gradients(dispatcher, theta, values, segments):
    """Outputs, and the gradients of a weighted sum of them."""
    with tf.GradientTape() as tape:
        theta.map(tape.watch)
        tape.watch(values)
        outputs = forward(dispatcher, theta, values, segments)["outputs"]
        total = tf.reduce_sum(outputs * tf.cast(tf.range(MODEL), tf.float32))
    by_theta, by_values = tape.gradient(total, [theta, values])
    return {"outputs": outputs, "values": by_values, **dict(by_theta.flatten())}


def theta():
    return init_theta(layer(Einsum()).weights(), 7)


@functools.cache
def on_eight_devices():
    return run_on(8, __file__)


def test_forward_has_two_all_to_alls_and_nothing_else():
    assert on_eight_devices()["forward"] == {"all-to-all": 2}


@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=str)
def test_with_gradients_it_has_four(dispatcher):
    """Tokens to experts and back; the gate's gradient is summed over devices."""
    counts = on_eight_devices()[f"{dispatcher}"]["backward"]
    assert counts["all-to-all"] == 4
    assert set(counts) == {"all-to-all", "all-reduce"}


@pytest.mark.parametrize(("dispatcher", "each"), [("Einsum", 4), ("Gather", 2)])
def test_without_any_one_annotation_a_layer_sends_more(dispatcher, each):
    with_all, *without = run_on(8, __file__, dispatcher, str(each))
    assert len(without) == each
    assert min(without) > 2 * with_all


@pytest.mark.parametrize("mesh", range(len(MESHES)))
@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=str)
def test_numbers_are_those_of_one_device(dispatcher, mesh):
    values, segments = inputs()
    expected = gradients(Einsum(), theta(), tf.constant(values), segments)
    results = on_eight_devices()[f"{dispatcher}"]["results"][mesh]
    assert set(results) == set(expected)
    for name in expected:
        # float32 sums of some dozens of terms of order 1 in another order.
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-5, atol=1e-5)


def bytes_sent(dispatcher, each):
    """The bytes of a device with all annotations of a layer, and without each of them."""
    from lingvo_moe.moe import dispatch
    from lingvo_moe.runtimes.hlo import collectives, total_bytes

    on_mesh = MoeOnMesh(layer(Einsum()).weights(), theta(), *inputs())
    of = {type(one).__name__: one for one in DISPATCHERS}[dispatcher]
    annotate, found = dispatch.annotate, []
    for left_out in (None, *range(int(each))):
        number = itertools.count()
        dispatch.annotate = lambda tensor, dims, number=number, left_out=left_out: (
            tensor if next(number) == left_out else annotate(tensor, dims)
        )
        run = functools.partial(gradients, of)
        program = on_mesh.compile(run, on_mesh.gradients, {"data": 2, "expert": 4})
        found.append(sum(total_bytes(collectives(program.as_text())).values()))
    print(json.dumps(found))


def main():
    """The results of all other tests that need eight devices, as JSON."""
    from lingvo_moe.runtimes.hlo import collectives, count

    on_mesh = MoeOnMesh(layer(Einsum()).weights(), theta(), *inputs())

    def compiled(function, results, dispatcher, mesh):
        return on_mesh.compile(functools.partial(function, dispatcher), results, mesh)

    forward_only = compiled(forward, ["outputs"], Gather(), MESHES[0])
    report = {"forward": count(collectives(forward_only.as_text()))}
    for dispatcher in DISPATCHERS:
        programs = [compiled(gradients, on_mesh.gradients, dispatcher, mesh) for mesh in MESHES]
        report[str(dispatcher)] = {
            "backward": count(collectives(programs[0].as_text())),
            "results": [on_mesh.run(program) for program in programs],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    bytes_sent(*sys.argv[1:]) if sys.argv[1:] else main()
