import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.balance_loss import ByGroup, BySequence
from lingvo_moe.moe.gatings.base import Extras
from lingvo_moe.moe.gatings.choices import top_choices
from lingvo_moe.testing import slow_routing


def of(balance, logits, mask, k=1, segments=None, row_length=None):
    gates = tf.nn.softmax(logits)
    expert = top_choices(gates, k)[1]
    return balance(gates, expert, tf.constant(mask), Extras(None, segments, row_length))


def sequence_balance(gates: np.ndarray, segments: np.ndarray, k: int) -> float:
    """DeepSeek-V3's equations 17 to 20, averaged over sentences.

    Args:
        gates: [B, T, E]; those of a token sum to 1.
        segments: [B, T], 0 is padding.
        k: K.
    """
    losses, num_experts = [], gates.shape[-1]
    for row, segment in zip(gates, segments, strict=True):
        for sentence in sorted(set(segment) - {0}):
            tokens = row[segment == sentence]
            chosen = [sorted(range(num_experts), key=lambda e: (-t[e], e))[:k] for t in tokens]
            loss = 0.0
            for e in range(num_experts):
                often = sum(e in experts for experts in chosen)
                loss += num_experts / (k * len(tokens)) * often * tokens[:, e].mean()
            losses.append(loss)
    return float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_equal_the_slow_loops(name):
    logits, mask, _ = slow_routing.case(name)
    expected = slow_routing.balance(logits, mask)
    np.testing.assert_allclose(of(ByGroup(), logits, mask), expected, rtol=1e-5)
    groups, tokens, experts = logits.shape
    # Rows of a third of a group, of sentences of two tokens; a group is not cut where rows are.
    length = tokens // 3 or 1
    rows = mask.reshape(-1, length)
    segments = np.where(rows, np.arange(length) // 2 + 1, 0).astype(np.int32)
    by_group = segments.reshape(groups, tokens)
    gates = slow_routing.softmax(logits.reshape(-1, length, experts))
    for k in {1, min(2, experts), experts}:
        expected = sequence_balance(gates, segments, k)
        found = of(BySequence(), logits, mask, k, tf.constant(by_group), length)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_sentence_may_be_more_even_than_its_groups():
    # Group 0 uses only expert 0, group 1 only expert 1.
    logits = 50.0 * tf.one_hot([[0] * 4, [1] * 4], 2)
    mask = np.ones([2, 4], bool)
    assert of(ByGroup(), logits, mask).numpy() == pytest.approx(2.0)
    # One row of both groups: sentence 1 is group 0 and one token of group 1.
    segments = tf.constant([[1, 1, 1, 1], [1, 2, 2, 2]])
    # Shares 4/5 and 1/5 are also the mean gates: 2 (16/25 + 1/25); the other sentence has 2.
    found = of(BySequence(), logits, mask, 1, segments, 8)
    assert found.numpy() == pytest.approx((34 / 25 + 2) / 2)


@pytest.mark.parametrize("balance", [ByGroup(), BySequence()], ids=str)
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
