import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Normal, WeightSpec, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.lion import Lion
from lingvo_moe.training.schedules import Constant


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
