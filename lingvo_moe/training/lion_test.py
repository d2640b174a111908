import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Normal, WeightSpec, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.lion import Lion
from lingvo_moe.training.schedules import Constant

WEIGHTS = NestedMap(w=WeightSpec((3, 5, 4), Normal(1.0), "EMH"))


def test_equals_keras_over_100_steps():
    optimizer = Lion(schedule=Constant(learning_rate=0.01), weight_decay=0.1)
    theta = init_theta(WEIGHTS, 0)
    weight = tf.Variable(theta.w)
    oracle = tf.keras.optimizers.Lion(0.01, weight_decay=0.1)
    slots = init_theta(optimizer.slots(WEIGHTS), 0)
    rng = np.random.default_rng(1)
    for step in range(100):
        grad = tf.constant(rng.normal(0, 1, [3, 5, 4]), tf.float32)
        theta, slots, _ = optimizer.update(
            theta, slots, NestedMap(w=grad), tf.constant(step, tf.int64), WEIGHTS
        )
        oracle.apply_gradients([(grad, weight)])
    np.testing.assert_allclose(theta.w, weight, rtol=1e-5, atol=1e-6)


def test_two_steps_by_hand():
    # Step 1: sign(0.1·1) = 1, mean 0.01. Step 2, gradient -0.05: sign(0.9·0.01 - 0.1·0.05 = 0.004)
    # is still 1; the mean becomes 0.99·0.01 - 0.01·0.05 = 0.0094.
    optimizer = Lion(schedule=Constant(learning_rate=0.5))
    weights = NestedMap(w=WeightSpec((), Normal(1.0), ""))
    theta, slots = NestedMap(w=tf.constant(2.0)), init_theta(optimizer.slots(weights), 0)
    for step, grad in enumerate([1.0, -0.05]):
        theta, slots, _ = optimizer.update(
            theta, slots, NestedMap(w=tf.constant(grad)), tf.constant(step, tf.int64), weights
        )
    assert theta.w.numpy() == 1.0
    np.testing.assert_allclose(slots.w.mean, 0.0094, rtol=1e-5)
