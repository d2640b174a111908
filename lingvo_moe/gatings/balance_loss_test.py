import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.balance_loss import ByBatch, ByGroup, BySequence
from lingvo_moe.gatings.base import Extras
from lingvo_moe.gatings.choices import top_choices
from lingvo_moe.testing import slow_routing


def of(balance, logits, mask, k=1, segments=None, row_length=None):
    gates = tf.nn.softmax(logits)
    expert = top_choices(gates, k)[1]
    return balance(gates, expert, tf.constant(mask), Extras(None, segments, row_length))


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_equal_the_slow_loops(name):
    logits, mask, _ = slow_routing.case(name)
    expected = slow_routing.balance(logits, mask)
    np.testing.assert_allclose(of(ByGroup(), logits, mask), expected, rtol=1e-5)
    groups, tokens, experts = logits.shape
    flat = logits.reshape(1, -1, experts), mask.reshape(1, -1)
    expected = slow_routing.balance(*flat)
    np.testing.assert_allclose(of(ByBatch(), logits, mask), expected, rtol=1e-5)
    # Rows of a third of a group, of sentences of two tokens; a group is not cut where rows are.
    length = tokens // 3 or 1
    rows = mask.reshape(-1, length)
    segments = np.where(rows, np.arange(length) // 2 + 1, 0).astype(np.int32)
    by_group = segments.reshape(groups, tokens)
    gates = slow_routing.softmax(logits.reshape(-1, length, experts))
    for k in {1, min(2, experts), experts}:
        expected = slow_routing.sequence_balance(gates, segments, k)
        found = of(BySequence(), logits, mask, k, tf.constant(by_group), length)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_batch_may_be_even_where_its_groups_are_not():
    # Group 0 uses only expert 0, group 1 only expert 1.
    logits = 50.0 * tf.one_hot([[0] * 4, [1] * 4], 2)
    mask = np.ones([2, 4], bool)
    assert of(ByGroup(), logits, mask).numpy() == pytest.approx(2.0)
    assert of(ByBatch(), logits, mask).numpy() == pytest.approx(1.0)
    # One row of both groups: sentence 1 is group 0 and one token of group 1.
    segments = tf.constant([[1, 1, 1, 1], [1, 2, 2, 2]])
    # Shares 4/5 and 1/5 are also the mean gates: 2 (16/25 + 1/25); the other sentence has 2.
    found = of(BySequence(), logits, mask, 1, segments, 8)
    assert found.numpy() == pytest.approx((34 / 25 + 2) / 2)


@pytest.mark.parametrize("balance", [ByGroup(), ByBatch(), BySequence()], ids=str)
def test_gradients_are_those_of_finite_differences(balance):
    rng = np.random.default_rng(3)
    apart = rng.permuted(np.tile(np.arange(3) * 0.5, (2, 6, 1)), axis=-1)
    mask = np.array([[True] * 5 + [False], [True] * 6])
    segments = tf.constant([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2]])

    def loss(logits):
        return of(balance, logits, mask, 2, segments, 3)

    logits = [tf.constant(apart + 0.1 * rng.random(apart.shape), tf.float32)]
    symbolic, numeric = tf.test.compute_gradient(loss, logits, delta=1e-2)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=5e-4)
    assert np.abs(symbolic[0]).max() > 0.01
    np.testing.assert_array_equal(np.reshape(symbolic[0], [2, 6, 3])[0, 5], 0.0)


def test_parts_of_a_batch_add_up_to_the_whole_with_its_choices():
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(6, 5, 4)).astype(np.float32)
    mask = rng.random((6, 5)) < 0.7
    whole = np.bincount(np.argmax(logits, axis=-1)[mask], minlength=4)
    extras = Extras(state=NestedMap(first_choices=tf.constant(whole, tf.float32)))
    total = 0.0
    for part in (slice(0, 2), slice(2, 6)):
        gates = tf.nn.softmax(logits[part])
        loss = ByBatch()(gates, top_choices(gates, 1)[1], tf.constant(mask[part]), extras)
        total += loss * mask[part].sum() / mask.sum()
    expected = slow_routing.balance(logits.reshape(1, -1, 4), mask.reshape(1, -1))
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_in_a_local_step_each_node_has_its_own_choices():
    """Groups 0 and 2 are of node 0, groups 1 and 3 of node 1."""
    gates = tf.nn.softmax(np.random.default_rng(4).normal(size=(4, 5, 3)).astype(np.float32))
    whole = np.array([[6.0, 3.0, 1.0], [2.0, 2.0, 6.0]], np.float32)
    extras = Extras(
        state=NestedMap(first_choices=tf.constant(whole[[0, 1, 0, 1]][:, None])), nodes=2
    )
    loss = ByBatch()(gates, top_choices(gates, 1)[1], tf.ones([4, 5], tf.bool), extras)
    by_node = [3 * whole[n] / 10 @ gates.numpy()[n::2].mean(axis=(0, 1)) for n in range(2)]
    np.testing.assert_allclose(loss, np.mean(by_node), rtol=1e-5)


def test_sentences_must_be_known():
    with pytest.raises(ValueError, match=r"BySequence needs segments, .* balance=ByGroup\(\)"):
        of(BySequence(), np.zeros([1, 2, 4], np.float32), np.ones([1, 2], bool))
