import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Normal, WeightSpec, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.muon import Muon, orthogonalize
from lingvo_moe.training.schedules import Constant

RATE = Constant(learning_rate=0.02)


def spec_of(shape, dims):
    return WeightSpec(shape, Normal(0.1), dims)


def run(optimizer, weights, steps=4):
    """theta and slots after some steps with random gradients."""
    theta, slots = init_theta(weights, 0), init_theta(optimizer.slots(weights), 0)
    update = tf.function(lambda *args: optimizer.update(*args, weights)[:2], autograph=False)
    for step in range(steps):
        grads = init_theta(weights, step + 1).map(lambda g, size=10.0**step: size * g)
        theta, slots = update(theta, slots, grads, tf.constant(step, tf.int64))
    return theta, slots


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (30, 30), (3, 2, 20, 50), (2, 50, 20)])
def test_singular_vectors_stay_and_singular_values_become_about_1(shape):
    matrices = np.random.default_rng(0).normal(size=shape) + 10 * np.eye(*shape[-2:])
    left, values, right = np.linalg.svd(matrices, full_matrices=False)
    shares = values / np.sqrt((values**2).sum(-1, keepdims=True))
    assert shares.min() > 0.003  # smaller ones need more than five iterations
    found = orthogonalize(tf.constant(matrices, tf.float32), 5).numpy()
    inside = np.swapaxes(left, -1, -2) @ found @ np.swapaxes(right, -1, -2)
    new_values = np.diagonal(inside, axis1=-2, axis2=-1)
    assert new_values.min() > 0.68
    assert new_values.max() < 1.21
    # Only the singular values change; the singular vectors stay.
    np.testing.assert_allclose(found, left * new_values[..., None, :] @ right, atol=1e-5)


@pytest.mark.parametrize("iterations", [3, 5, 8])
def test_a_matrix_of_low_rank_and_products_of_bfloat16(monkeypatch, iterations):
    """As on accelerators, and for experts with few tokens."""
    product = tf.matmul

    def rounded(*operands, **options):
        inputs = [tf.cast(tf.cast(x, tf.bfloat16), tf.float32) for x in operands]
        return product(*inputs, **options)

    monkeypatch.setattr(tf, "matmul", rounded)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(128, 4)) @ rng.normal(size=(4, 512))
    found = orthogonalize(tf.constant(matrix, tf.float32), iterations).numpy()
    values = np.linalg.svd(found, compute_uv=False)
    assert 0.6 < values[3] <= values[0] < 1.3


@pytest.mark.parametrize("shape", [(128, 160), (320, 128)])
def test_equals_keras_over_20_steps(shape):
    """With min_scale above each weight's RMS the size of a change is that of Liu et al. 2025."""
    weights = NestedMap(w=spec_of(shape, "MH"))
    optimizer = Muon(schedule=RATE, matrix_factor=0.2, min_scale=1.0)
    oracle = keras.optimizers.Muon(0.02, weight_decay=None, momentum=0.95, rms_rate=0.2)
    theta, slots = init_theta(weights, 0), init_theta(optimizer.slots(weights), 0)
    weight, rng = keras.Variable(theta.w.numpy()), np.random.default_rng(1)
    for step in range(20):
        grad = tf.constant(rng.normal(0, 1 + step % 7, shape), tf.float32)
        theta, slots, _ = optimizer.update(
            theta, slots, NestedMap(w=grad), tf.constant(step, tf.int64), weights
        )
        oracle.apply_gradients([(grad, weight)])
    np.testing.assert_allclose(theta.w, weight, rtol=1e-4, atol=1e-5)


def test_experts_move_as_each_does_alone():
    together = NestedMap(w=spec_of((3, 128, 130), "EMH"))
    optimizer = Muon(schedule=RATE)
    start = init_theta(together, 0)
    slots = init_theta(optimizer.slots(together), 0)
    grads = init_theta(together, 1).map(lambda g: g * tf.constant([1.0, 50.0, 0.0])[:, None, None])
    moved, _, _ = optimizer.update(start, slots, grads, tf.constant(0, tf.int64), together)
    alone = NestedMap(w=spec_of((128, 130), "MH"))
    for e in range(3):
        one, _, _ = optimizer.update(
            NestedMap(w=start.w[e]),
            NestedMap(w=NestedMap(mean=slots.w.mean[e])),
            NestedMap(w=grads.w[e]),
            tf.constant(0, tf.int64),
            alone,
        )
        np.testing.assert_allclose(moved.w[e], one.w, atol=1e-6)
    np.testing.assert_array_equal(moved.w[2], start.w[2])


def test_an_expert_without_tokens_stays_also_after_it_had_some():
    """Its mean is not 0. Without the rule its weight would grow to infinity in 600 steps."""
    weights = NestedMap(w=spec_of((2, 128, 130), "EMH"))
    optimizer = Muon(schedule=RATE)
    update = tf.function(lambda *args: optimizer.update(*args, weights)[:2], autograph=False)
    theta, slots = run(optimizer, weights, steps=2)
    before, grads = theta.w, init_theta(weights, 9)
    grads = grads.map(lambda g: g * tf.constant([1.0, 0.0])[:, None, None])
    for step in range(2, 5):
        theta, slots = update(theta, slots, grads, tf.constant(step, tf.int64))
    np.testing.assert_array_equal(theta.w[1], before[1])
    assert np.abs(slots.w.mean[1]).max() > 0
    assert np.abs(theta.w[0] - before[0]).max() > 1e-4


@pytest.mark.parametrize("size", [1e-12, 1e-17, 1e-20, 1e-21, 1e-30, 1e-38])
def test_tiny_gradients_never_grow(size):
    """The squares of numbers below 1e-19 are inexact or 0 in float32."""
    matrix = tf.random.stateless_normal([128, 160], [0, 0])
    values = np.linalg.svd(orthogonalize(size * matrix, 5), compute_uv=False)
    assert np.isfinite(values).all()
    assert values.max() < 1.21
    if size >= 1e-12:
        np.testing.assert_allclose(values, np.linalg.svd(orthogonalize(matrix, 5))[1], rtol=1e-3)


def test_which_weights_are_left_to_adafactor():
    """Vectors, narrow matrices, the embedding and gates; Muon's momentum is not for them."""
    weights = NestedMap(
        embedding=spec_of((300, 128), "VM"),
        gate=spec_of((128, 200), "Me"),
        norm=spec_of((128,), "M"),
        narrow=spec_of((128, 8), "MH"),
        wo=spec_of((2, 2, 130, 128), "YEHM"),
    )
    theta, slots = run(Muon(schedule=RATE), weights)
    expected, same_slots = run(Adafactor(schedule=RATE), weights)
    assert list(slots.wo) == ["mean"]
    assert np.abs(theta.wo - expected.wo).max() > 1e-3
    for name in ("embedding", "gate", "norm", "narrow"):
        np.testing.assert_array_equal(theta[name], expected[name])
        assert list(slots[name]) == list(same_slots[name])


@pytest.mark.parametrize("shape", [(3, 8, 24), (24, 8), (12, 12)])
@pytest.mark.parametrize("iterations", [3, 5])
def test_flops_are_those_of_the_products(shape, iterations):
    spec = WeightSpec(shape, Normal(1.0), "EMH"[-len(shape) :])
    graph = tf.function(lambda x: orthogonalize(x, iterations), autograph=False)
    operations = graph.get_concrete_function(tf.TensorSpec(shape)).graph.get_operations()
    products = [one for one in operations if "MatMul" in one.type]
    expected = 0
    for one in products:
        inner = one.inputs[0].shape[
            -2 if one.get_attr("adj_x" if "Batch" in one.type else "transpose_a") else -1
        ]
        expected += 2 * one.outputs[0].shape.num_elements() * inner
    assert Muon(schedule=Constant(learning_rate=1.0), iterations=iterations).flops(spec) == 0
    small = Muon(
        schedule=Constant(learning_rate=1.0), iterations=iterations, min_dim_size_to_factor=8
    )
    assert small.flops(spec) == expected
