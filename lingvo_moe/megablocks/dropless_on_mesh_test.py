"""Runs itself in a process of its own, where JAX has eight virtual devices."""

import dataclasses
import functools
import json
import math
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.activation import SwiGLU
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.testing.devices import run_on
from lingvo_moe.testing.moe_on_mesh import MoeOnMesh

DEVICES, TOKENS, EXPERTS, MODEL, K = 8, 12, 16, 20, 2
RUNG = 3  # with room for 1.25⁴ = 2.44 times the tokens of a pair at balance, 12 · 2 / 8
STATS = ("lost", "rung", "device_rows")
LIMIT = NodeLimited(nodes=DEVICES, kept=1)
# Mesh, dispatcher, and the gating's limit. On the last mesh experts are split too.
PROGRAMS = {
    "any load": ({"expert": 8}, Dropless(), None),
    "one rung": ({"expert": 8}, Dropless(rung=RUNG), None),
    "one device a token": ({"expert": 8}, Dropless(rung=RUNG, kept=1), LIMIT),
    "tensor parallel": ({"data": 2, "expert": 2, "model": 2}, Dropless(), None),
}


def layer(dispatcher, limit=None):
    policy = dataclasses.replace(dispatcher, groups=DEVICES)
    gating = TopK(k=K, limit=limit)
    params = MoEParams(num_experts=EXPERTS, gating=gating, training=policy)
    return MoE(model_dim=MODEL, hidden_dim=8, params=params, activation=SwiGLU(), use_bias=True)


def load(seed):
    """Inputs whose first elements are the scores: few or many experts, evenly or not."""
    rng = np.random.default_rng(seed)
    some = rng.permutation(EXPERTS)[: rng.integers(K, EXPERTS + 1)]
    share = rng.dirichlet(np.full(len(some), rng.choice([0.1, 1.0, 10.0])))
    values = rng.normal(size=(DEVICES, TOKENS, MODEL)) / 4
    values[..., some] += 3.0
    for score in (4.0, 2.0):
        values[..., :EXPERTS] += (
            score * np.eye(EXPERTS)[rng.choice(some, (DEVICES, TOKENS), p=share)]
        )
    return values.astype(np.float32), (rng.random((DEVICES, TOKENS)) < 0.9).astype(np.int32)


def theta():
    values = init_theta(layer(Dropless()).weights(), 7)
    values = values.map(
        lambda w: w + 0.1 * tf.cos(tf.reshape(tf.range(tf.size(w), dtype=w.dtype), w.shape))
    )
    values.gate = tf.eye(MODEL, EXPERTS)
    return values


def gradients(moe, theta, values, segments):
    """Outputs, and the gradients of a weighted sum of them."""
    with tf.GradientTape() as tape:
        theta.map(tape.watch)
        tape.watch(values)
        output = moe.fprop(theta, values, Tokens(segments, segments), Context(tf.constant([1, 2])))
        total = tf.reduce_sum(output.outputs * tf.cos(tf.range(MODEL, dtype=tf.float32)))
    by_theta, by_values = tape.gradient(total, [theta, values])
    found = {"outputs": output.outputs, "values": by_values, **dict(by_theta.flatten())}
    stats = {name: output.stats[name] for name in STATS if name in output.stats}
    loads = {} if stats.keys() == {*STATS} else {"choices": output.stats.choices}
    return found | stats | loads


@functools.cache
def report(name):
    return run_on(DEVICES, __file__, name)


def slow_but_one(name, *values):
    """A case of a program, which is slow to compile if it has several rungs."""
    return pytest.param(name, *values, marks=() if name == "one rung" else pytest.mark.slow)


@pytest.mark.parametrize("name", map(slow_but_one, PROGRAMS))
def test_any_load_gives_the_numbers_of_one_device(name):
    """With room for it; otherwise the choices without a place are counted."""
    found = report(name)
    assert found["error"] < 1e-4
    assert found["fitted"] == sum(load["needed"] <= found["rung"] for load in found["loads"])
    assert all((load["lost"] > 0) == (load["needed"] > found["rung"]) for load in found["loads"])
    assert 2 < found["fitted"] <= len(found["loads"]) == 30
    assert max(load["empty devices"] for load in found["loads"]) > 3


@pytest.mark.parametrize(
    ("name", "kept"), [slow_but_one("one rung", K), slow_but_one("one device a token", 1)]
)
def test_rows_travel_once_each_way(name, kept):
    """Rows, and K experts and K weights with each; back the sums. The same for gradients."""
    room = math.ceil(1.25**4 * TOKENS * kept / DEVICES)
    rows, about = (DEVICES * room * size * 4 for size in (MODEL, 2 * K))
    found = report(name)
    assert sorted(found["all-to-all"]) == sorted([about, rows, rows, rows, rows, about])
    assert found["kinds"] == ["all-reduce", "all-to-all"]


def _error(got, expected):
    """Relative to the largest element; gradients of weights are sums over tokens."""
    return np.abs(got - expected).max() / max(1.0, np.abs(expected).max())


def main(name):
    """The results of a program, as JSON."""
    from lingvo_moe.runtimes.hlo import collectives

    given, (mesh, dispatcher, limit) = theta(), PROGRAMS[name]
    rung, dispatcher = dispatcher.rung, dataclasses.replace(dispatcher, block_size=4)
    on_mesh = MoeOnMesh(layer(Dropless()).weights(), given, *load(0))
    one_device = tf.function(functools.partial(gradients, layer(Ragged(), limit)), autograph=False)
    function = functools.partial(gradients, layer(dispatcher, limit))
    program = on_mesh.compile(function, (*on_mesh.gradients, *STATS), mesh)
    loads, errors = [], []
    for seed in range(30):
        values, segments = load(seed)
        got = on_mesh.run(program, values, segments)
        expected = one_device(given, tf.constant(values), tf.constant(segments))
        of_device = np.reshape(expected["choices"], [DEVICES, -1]).sum(axis=1)
        empty = int(np.sum(of_device == 0))
        loads.append({"needed": got["rung"], "lost": got["lost"], "empty devices": empty})
        if rung is None or got["rung"] <= rung:
            every = (_error(got[n], expected[n].numpy()) for n in on_mesh.gradients)
            errors.append(max(every))
    found = collectives(program.as_text())
    result = {
        "error": float(max(errors)),
        "fitted": len(errors),
        "loads": loads,
        "rung": 99 if rung is None else rung,
        "all-to-all": [c.bytes for c in found if c.kind == "all-to-all"],
        "kinds": sorted({c.kind for c in found}),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
