import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.layers.feed_forward import FeedForward


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
