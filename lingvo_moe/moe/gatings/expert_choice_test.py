import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.expert_choice import ExpertChoice
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))
LIMITED_BY_CAPACITY = ExpertChoice(capacity_factor=64.0)


@pytest.mark.parametrize("name", [n for n in slow_routing.CASES if n != "unlimited"])
@pytest.mark.parametrize("context", [TRAINING, EVALUATION])
def test_equals_the_slow_loop(name, context):
    logits, mask, capacity = slow_routing.case(name)
    # The paper ranks gates; in float32, so that equal gates are equal here too.
    gates = tf.nn.softmax(logits).numpy()
    routing = LIMITED_BY_CAPACITY.route(tf.constant(logits), tf.constant(mask), capacity, context)
    load, nobodys = np.zeros(logits.shape[-1]), 0
    for g in range(len(logits)):
        expected = slow_routing.take(gates[g], mask[g], capacity)
        slow_routing.assert_same(slow_routing.dispatched(routing, g), expected)
        for _, e in expected:
            load[e] += 1
        nobodys += len(set(np.flatnonzero(mask[g])) - {s for s, _ in expected})
    np.testing.assert_allclose(routing.stats.load, load / load.sum(), rtol=1e-6)
    np.testing.assert_allclose(routing.stats.drop_rate, nobodys / mask.sum(), atol=1e-6)
    assert routing.aux_loss.numpy() == 1.0


def test_by_hand():
    # Expert 0 has the highest gates for tokens 2 and 0. Expert 1 has equal gates for tokens 1, 2
    # and 3 and takes the two earlier ones; expert 2 takes tokens 1 and 3.
    gates = tf.constant([[[0.4, 0.1, 0.5], [0.1, 0.3, 0.6], [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]])
    routing = ExpertChoice().route(tf.math.log(gates), tf.ones([1, 4], tf.bool), 2, TRAINING)
    # The first choice of a token is the expert with the highest gate that takes it.
    assert routing.expert.numpy().tolist() == [[[0, 1, 2], [2, 1, 0], [0, 1, 2], [2, 0, 1]]]
    assert routing.position[0, :, 0].numpy().tolist() == [1, 0, 0, 1]
    np.testing.assert_allclose(
        routing.weight[0], [[0.4, 0, 0], [0.6, 0.3, 0], [0.5, 0.3, 0], [0.6, 0, 0]], rtol=1e-5
    )
    assert routing.stats.drop_rate.numpy() == 0.0


def test_without_room_for_all_padding_is_last():
    logits = tf.constant([[[9.0, 0.0], [0.0, 0.0], [1.0, 0.0]]])
    mask = tf.constant([[False, True, True]])
    routing = ExpertChoice().route(logits, mask, 1, TRAINING)
    assert routing.dispatched[0].numpy().tolist() == [[False] * 2, [True, False], [True, False]]
    assert routing.expert[0, :, 0].numpy().tolist()[1:] == [1, 0]
    np.testing.assert_allclose(routing.stats.load, [0.5, 0.5])
    assert routing.stats.drop_rate.numpy() == 0.0
    everyone = LIMITED_BY_CAPACITY.route(logits, mask, 3, TRAINING)
    assert everyone.dispatched[0].numpy().tolist() == [[False] * 2, [True] * 2, [True] * 2]


def test_experts_are_equally_loaded():
    logits, mask, capacity = slow_routing.case("one_expert_takes_all")
    routing = ExpertChoice().route(logits, mask, capacity, TRAINING)
    np.testing.assert_allclose(routing.stats.load, [0.25] * 4)


def test_all_padding_gives_zeros():
    routing = ExpertChoice().route(tf.zeros([2, 3, 4]), tf.zeros([2, 3], tf.bool), 2, TRAINING)
    assert not np.any(routing.dispatched)
    assert routing.stats.drop_rate.numpy() == 0.0
    np.testing.assert_array_equal(routing.stats.load, [0.0] * 4)


def test_its_own_capacity_factor():
    """Two tokens of each expert, ceil(1.5 · 4 / 3), where the policy has room for all."""
    routing = ExpertChoice(capacity_factor=1.5).route(
        tf.random.stateless_normal([1, 4, 3], [1, 2]), tf.ones([1, 4], tf.bool), None, TRAINING
    )
    np.testing.assert_array_equal(routing.stats.choices, [2, 2, 2])


def test_it_needs_a_static_shape():
    @tf.function(input_signature=[tf.TensorSpec([1, None, 4])], autograph=False)
    def route(logits):
        return ExpertChoice().route(
            logits, tf.ones(tf.shape(logits)[:2], tf.bool), None, EVALUATION
        )

    with pytest.raises(ValueError, match="static shape"):
        route.get_concrete_function()
