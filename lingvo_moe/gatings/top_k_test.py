import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context
from lingvo_moe.gatings.switch import Switch
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))


def assert_equal(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, tuple(one), tuple(other))


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("normalize", [True, False])
def test_equals_the_slow_loop(name, k, normalize):
    logits, mask, capacity = slow_routing.case(name)
    k = min(k, logits.shape[-1])

    def best(g, s):
        return slow_routing.best(logits[g, s], k, normalize)

    routing = TopK(k=k, normalize=normalize).route(
        tf.constant(logits), tf.constant(mask), capacity, TRAINING
    )
    slow_routing.assert_routes(routing, best, logits, mask, capacity, k)
    expected = slow_routing.balance(logits, mask)
    np.testing.assert_allclose(routing.aux_loss, expected, rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in slow_routing.CASES if n != "single_expert"])
@pytest.mark.parametrize("context", [TRAINING, EVALUATION])
def test_top_2_is_one_of_it(name, context):
    logits, mask, capacity = slow_routing.case(name)
    top_2 = Top2(second_expert="always").route(logits, mask, capacity, context)
    assert_equal(TopK(k=2).route(logits, mask, capacity, context), top_2)


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_switch_is_one_of_it(name):
    logits, mask, capacity = slow_routing.case(name)
    top_1 = TopK(k=1, normalize=False).route(logits, mask, capacity, TRAINING)
    assert_equal(top_1, Switch().route(logits, mask, capacity, TRAINING))


def test_third_choices_queue_last():
    # Two tokens rank the experts 0 1 2 and 2 1 0: each expert sees an early and a late choice.
    logits = tf.constant([[[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]])
    routing = TopK(k=3).route(logits, tf.ones([1, 2], tf.bool), 1, TRAINING)
    assert routing.expert.numpy().tolist() == [[[0, 1, 2], [2, 1, 0]]]
    assert routing.position.numpy().tolist() == [[[0, 0, 1], [0, 1, 1]]]
    assert routing.stats.drop_rate.numpy() == 0.5


def test_more_choices_than_experts_fail():
    with pytest.raises(
        ValueError, match=r"k=5 must not exceed .* experts, 4; lower k or raise moe.num_e"
    ):
        TopK(k=5).route(tf.zeros([1, 2, 4]), tf.ones([1, 2], tf.bool), None, TRAINING)


def test_bad_policy():
    with pytest.raises(ValueError, match=r"k must be >= 1, got 0"):
        TopK(k=0)
