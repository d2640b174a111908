import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.remat import rematerialized
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens


class Result(NamedTuple):
    y: tf.Tensor
    nothing: None
    parts: NestedMap


def layer(theta, x, index, scale):
    """y = tanh(x·w)·scale, besides what the index picks; the scale is no tensor."""
    y = tf.tanh(x @ theta.w) * scale
    return Result(y, None, NestedMap(picked=tf.gather(y, index), index=index + 1))


def gradients(fn, mode):
    theta = NestedMap(w=tf.constant([[0.3, -0.2], [0.5, 0.1]]))
    x, index = tf.constant([[1.0, 2.0], [-1.0, 0.5]]), tf.constant([1])

    def step(w, x):
        with tf.GradientTape() as tape:
            tape.watch([w, x])
            result = fn(NestedMap(w=w), x, index, 3.0)
            loss = tf.reduce_sum(result.y**2) + tf.reduce_sum(result.parts.picked)
        return loss, result.parts.index, tape.gradient(loss, [w, x])

    compiled = {
        "eager": lambda f: f,
        "graph": lambda f: tf.function(f, autograph=False),
        "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
    }[mode]
    return compiled(step)(theta.w, x)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_the_same_numbers(mode):
    loss, index, (dw, dx) = gradients(rematerialized(layer), mode)
    # By hand in NumPy: y = 3·tanh(a); dloss/dy = 2y, + 1 in the picked row; dy/da = 3·(1-tanh²).
    w, x = np.array([[0.3, -0.2], [0.5, 0.1]]), np.array([[1.0, 2.0], [-1.0, 0.5]])
    tanh = np.tanh(x @ w)
    upstream = 6 * tanh + np.array([[0.0], [1.0]])
    da = upstream * 3 * (1 - tanh**2)
    np.testing.assert_allclose(loss, (9 * tanh**2).sum() + 3 * tanh[1].sum(), rtol=1e-5)
    np.testing.assert_allclose(dw, x.T @ da, rtol=1e-5)
    np.testing.assert_allclose(dx, da @ w.T, rtol=1e-5)
    assert index.numpy().tolist() == [2]


def test_structure_survives():
    x = tf.ones([1, 2])
    result = rematerialized(layer)(NestedMap(w=tf.eye(2)), x, tf.constant([0]), 2.0)
    assert isinstance(result, Result)
    assert result.nothing is None
    assert isinstance(result.parts, NestedMap)


def test_xla_is_handed_a_second_forward_pass_behind_a_barrier():
    def text(fn):
        @tf.function(autograph=False, jit_compile=True)
        def gradient(w, x):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = tf.reduce_sum(fn(w, x))
            return loss, tape.gradient(loss, w)

        return gradient.experimental_get_compiler_ir(w, x)(stage="hlo")

    def network(w, x):
        return tf.tanh(tf.tanh(x @ w) @ w)

    # The effect depends on the back end: planning tests measure it for TPUs; the CPU's compiler
    # removes barriers and merges the passes.
    w, x = tf.ones([8, 8]), tf.ones([8, 8])
    assert text(network).count(" tanh(") == 2
    assert text(rematerialized(network)).count(" tanh(") == 4
    assert text(rematerialized(network)).count(" opt-barrier(") == 1


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_transformer_learns_alike_with_and_without(jit_compile):
    params = TransformerParams(
        num_encoder_layers=1,
        num_decoder_layers=1,
        model_dim=16,
        hidden_dim=24,
        num_heads=2,
        head_dim=8,
        dropout_rate=0.0 if jit_compile else 0.3,  # XLA takes long to compile generators
        moe=MoEParams(num_experts=4, every_n=1, training=Einsum()),
    )
    rng = np.random.default_rng(0)
    source, target = (
        Tokens(tf.constant(rng.integers(4, 13, [3, n]), tf.int32), tf.constant(segments, tf.int32))
        for n, segments in ((4, [[1, 1, 2, 2], [1, 1, 1, 0], [1, 2, 3, 0]]), (2, [[1, 2]] * 3))
    )

    def run(remat):
        model = Transformer(
            params=dataclasses.replace(params, remat=remat),
            source_vocab_size=13,
            target_vocab_size=13,
        )
        theta = init_theta(model.weights(), 0)

        def step(theta):
            with tf.GradientTape() as tape:
                theta.map(tape.watch)
                output = model.fprop(theta, source, target, Context(tf.constant([1, 2])))
                loss = tf.reduce_sum(tf.nn.softmax(output.outputs)[..., 0]) + output.moe_loss
            grads = tape.gradient(loss, theta).map(tf.convert_to_tensor)
            return loss, grads, output.stats

        return tf.function(step, autograph=False, jit_compile=jit_compile)(theta)

    (loss, grads, stats), (kept_loss, kept_grads, kept_stats) = run(True), run(False)
    np.testing.assert_allclose(loss, kept_loss, rtol=1e-6)
    for (name, ours), (_, theirs) in zip(grads.flatten(), kept_grads.flatten(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7, err_msg=name)
    for (name, ours), (_, theirs) in zip(stats.flatten(), kept_stats.flatten(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
