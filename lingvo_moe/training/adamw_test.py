import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Normal, WeightSpec, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import Constant


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
