import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("context", [TRAINING, EVALUATION])
def test_equals_the_slow_loop(name, context):
    logits, mask, capacity = slow_routing.case(name)

    def best(g, s):
        return slow_routing.best(logits[g, s], 1, normalize=False)

    routing = Switch().route(tf.constant(logits), tf.constant(mask), capacity, context)
    slow_routing.assert_routes(routing, best, logits, mask, capacity)
    expected = slow_routing.balance(logits, mask)
    np.testing.assert_allclose(routing.aux_loss, expected, rtol=1e-5)


def test_by_hand():
    # Gates 0.8 and 0.2; three tokens choose expert 0, which has capacity 2.
    high, low = np.log(0.8), np.log(0.2)
    logits = tf.constant([[[high, low], [high, low], [low, high], [high, low]]], tf.float32)
    routing = Switch().route(logits, tf.ones([1, 4], tf.bool), 2, TRAINING)
    assert routing.expert[0, :, 0].numpy().tolist() == [0, 0, 1, 0]
    assert routing.position[0, :, 0].numpy().tolist() == [0, 1, 0, 2]
    np.testing.assert_allclose(routing.weight[0, :, 0], [0.8, 0.8, 0.8, 0.0], rtol=1e-6)
    assert routing.stats.drop_rate.numpy() == 0.25
    # f = (3/4, 1/4), P = (0.65, 0.35): 2·(0.4875 + 0.0875) = 1.15.
    np.testing.assert_allclose(routing.aux_loss, 1.15, rtol=1e-6)
