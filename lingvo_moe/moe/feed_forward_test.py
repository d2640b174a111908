import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.activation import GEGLU, GELU, ReLU, SwiGLU
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap


def test_by_hand():
    # Hidden: relu([1·1 - 2·1, 1·1 + 2·1]) = [0, 3]; output: 3 · [5, 6].
    theta = NestedMap(
        wi=tf.constant([[1.0, 1.0], [-1.0, 1.0]]), wo=tf.constant([[7.0, 8.0], [5.0, 6.0]])
    )
    outputs = FeedForward(model_dim=2, hidden_dim=2).fprop(theta, tf.constant([[1.0, 2.0]]))
    np.testing.assert_array_equal(outputs, [[15.0, 18.0]])


def test_experts_are_networks_side_by_side():
    experts = FeedForward(model_dim=4, hidden_dim=6, num_experts=3)
    theta = init_theta(experts.weights(), 0)
    rows = tf.constant(np.random.default_rng(0).normal(size=[3, 5, 4]), tf.float32)
    outputs = experts.fprop(theta, rows)
    plain = FeedForward(model_dim=4, hidden_dim=6)
    for e in range(3):
        expected = plain.fprop(theta.map(lambda w, e=e: w[e]), rows[e])
        np.testing.assert_allclose(outputs[e], expected, atol=1e-6)


def test_starts_uniform_by_the_fan_in_of_one_expert():
    theta = init_theta(FeedForward(model_dim=48, hidden_dim=12, num_experts=5).weights(), 0)
    # √(3/48) = 0.25 and √(3/12) = 0.5, whatever the number of experts.
    for weight, limit in [(theta.wi, 0.25), (theta.wo, 0.5)]:
        assert 0.98 * limit < np.abs(weight).max() <= limit
        np.testing.assert_allclose(np.std(weight), limit / 3**0.5, rtol=0.05)


def test_gated_by_hand():
    # Swish of the gates [0, ln 3] is [0, ln 3 · 3/4]; times x·wi = [5, 4]; times wo = [1, 2].
    layer = FeedForward(model_dim=1, hidden_dim=2, activation=SwiGLU())
    theta = NestedMap(
        wi=tf.constant([[5.0, 4.0]]),
        wg=tf.constant([[0.0, np.log(3.0)]], tf.float32),
        wo=tf.constant([[1.0], [2.0]]),
    )
    outputs = layer.fprop(theta, tf.constant([[1.0]]))
    np.testing.assert_allclose(outputs, [[2 * 4 * np.log(3) * 0.75]], rtol=1e-6)


@pytest.mark.parametrize("activation", [ReLU(), GELU(), GEGLU(), SwiGLU()], ids=str)
def test_every_weight_of_every_activation_learns(activation):
    layer = FeedForward(model_dim=4, hidden_dim=6, num_experts=3, activation=activation)
    theta = init_theta(layer.weights(), 0)
    assert sorted(theta) == (["wg", "wi", "wo"] if activation.gated else ["wi", "wo"])
    rows = tf.constant(np.random.default_rng(0).normal(size=[3, 5, 4]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(theta)
        total = tf.reduce_sum(tf.sin(layer.fprop(theta, rows)))
    for gradient in tape.gradient(total, theta).values():
        assert np.abs(gradient).max() > 1e-3


def test_dropout_is_on_the_hidden_layer_and_only_in_training():
    # Each of 4000 hidden units is 1 and wo adds them, so the output counts the units that are kept.
    layer = FeedForward(model_dim=1, hidden_dim=4000, dropout_rate=0.4)
    theta = NestedMap(wi=tf.ones([1, 4000]), wo=tf.ones([4000, 1]))
    one = tf.ones([1, 1])
    np.testing.assert_allclose(layer.fprop(theta, one), [[4000.0]])
    kept = layer.fprop(theta, one, Context(tf.constant([1, 2])))[0, 0] * 0.6
    assert abs(kept - 2400) < 5 * (4000 * 0.4 * 0.6) ** 0.5
    assert kept != 2400
