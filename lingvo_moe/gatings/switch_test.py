import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context
from lingvo_moe.gatings.switch import Switch
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
    # Gates 0.8 and 0.2; three tokens want expert 0, which has two places.
    high, low = np.log(0.8), np.log(0.2)
    logits = tf.constant([[[high, low], [high, low], [low, high], [high, low]]], tf.float32)
    routing = Switch().route(logits, tf.ones([1, 4], tf.bool), 2, TRAINING)
    assert routing.expert[0, :, 0].numpy().tolist() == [0, 0, 1, 0]
    assert routing.position[0, :, 0].numpy().tolist() == [0, 1, 0, 2]
    np.testing.assert_allclose(routing.weight[0, :, 0], [0.8, 0.8, 0.8, 0.0], rtol=1e-6)
    assert routing.stats.drop_rate.numpy() == 0.25
    # f = (3/4, 1/4), P = (0.65, 0.35): 2·(0.4875 + 0.0875) = 1.15.
    np.testing.assert_allclose(routing.aux_loss, 1.15, rtol=1e-6)


@pytest.mark.parametrize("num_experts", [1, 2, 8])
def test_aux_loss_is_one_at_balance_and_e_at_collapse(num_experts):
    mask = tf.ones([1, 4 * num_experts], tf.bool)
    even = tf.tile(3.0 * tf.eye(num_experts)[None], [1, 4, 1])
    collapsed = 100.0 * tf.one_hot(tf.zeros_like(mask, tf.int32), num_experts)
    for logits, loss in [(even, 1.0), (collapsed, num_experts)]:
        routing = Switch().route(logits, mask, None, TRAINING)
        np.testing.assert_allclose(routing.aux_loss, loss, atol=1e-6)


@pytest.mark.parametrize("output", ["aux_loss", "weight"])
def test_gradients_are_those_of_finite_differences(output):
    # Logits half a unit apart, so that a small change keeps their order.
    apart = np.tile(np.arange(3) * 0.5, (2, 5, 1))
    logits = tf.constant(np.random.default_rng(1).permuted(apart, axis=-1), tf.float32)
    mask = tf.constant([[True, True, False, True, True], [True, False, True, True, True]])
    symbolic, numeric = tf.test.compute_gradient(
        lambda x: getattr(Switch().route(x, mask, 2, TRAINING), output), [logits], delta=1e-2
    )
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=2e-4)
    assert np.abs(symbolic[0]).max() > 0.01
