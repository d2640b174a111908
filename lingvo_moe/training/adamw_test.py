import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Normal, WeightSpec, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import Constant

WEIGHTS = NestedMap(w=WeightSpec((3, 5, 4), Normal(1.0), "EMH"))


def test_equals_keras_over_100_steps():
    optimizer = AdamW(schedule=Constant(learning_rate=0.01), weight_decay=0.1)
    theta = init_theta(WEIGHTS, 0)
    weight = tf.Variable(theta.w)
    oracle = tf.keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-8)
    slots = init_theta(optimizer.slots(WEIGHTS), 0)
    rng = np.random.default_rng(1)
    for step in range(100):
        grad = tf.constant(rng.normal(0, 1 + step % 7, [3, 5, 4]), tf.float32)
        theta, slots, _ = optimizer.update(
            theta, slots, NestedMap(w=grad), tf.constant(step, tf.int64), WEIGHTS
        )
        oracle.apply_gradients([(grad, weight)])
    np.testing.assert_allclose(theta.w, weight, rtol=1e-5, atol=1e-6)


def test_first_step_by_hand():
    # Both means are corrected to the gradient and its square: the step is rate·sign(g).
    optimizer = AdamW(schedule=Constant(learning_rate=0.01))
    weights = NestedMap(w=WeightSpec((2,), Normal(1.0), "M"))
    slots = init_theta(optimizer.slots(weights), 0)
    theta, slots, _ = optimizer.update(
        NestedMap(w=tf.constant([1.0, 1.0])),
        slots,
        NestedMap(w=tf.constant([3.0, -0.2])),
        tf.constant(0, tf.int64),
        weights,
    )
    np.testing.assert_allclose(theta.w, [0.99, 1.01], rtol=1e-6)
    np.testing.assert_allclose(slots.w.mean, [0.3, -0.02], rtol=1e-5)
    np.testing.assert_allclose(slots.w.square, [0.009, 0.00004], rtol=1e-4)
