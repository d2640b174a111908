import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.balanced import Balanced, sinkhorn
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))


def slow_plan(logits, mask, iterations):
    """Sinkhorn's scalings of one group's exp(logits), entry by entry; rows of padding stay 0."""
    real, experts = np.flatnonzero(mask), range(logits.shape[-1])
    plan = slow_routing.softmax(logits) * mask[:, None]
    for _ in range(iterations):
        for e in experts:
            plan[:, e] *= len(real) / len(experts) / sum(plan[s, e] for s in real)
        for s in real:
            plan[s] /= sum(plan[s, e] for e in experts)
    return plan


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("iterations", [1, 16])
def test_plan_equals_the_slow_loop(name, iterations):
    logits, mask, _ = slow_routing.case(name)
    plan = tf.exp(sinkhorn(tf.constant(logits), tf.constant(mask), iterations))
    for g in np.flatnonzero(mask.any(axis=1)):
        expected = slow_plan(logits[g], mask[g], iterations)
        np.testing.assert_allclose(plan[g][mask[g]], expected[mask[g]], atol=1e-5)


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_training_takes_the_largest_entry_of_the_plan(name):
    logits, mask, capacity = slow_routing.case(name)
    gates = slow_routing.softmax(logits)
    # Ties in the plan are ties to rounding only, so the choice is of TensorFlow's plan.
    plan = sinkhorn(tf.constant(logits), tf.constant(mask), 16).numpy()

    def largest(g, s):
        expert = min(range(logits.shape[-1]), key=lambda e: (-plan[g, s, e], e))
        return [(expert, gates[g, s, expert])]

    routing = Balanced().route(tf.constant(logits), tf.constant(mask), capacity, TRAINING)
    slow_routing.assert_routes(routing, largest, logits, mask, capacity)
    assert routing.aux_loss.numpy() == 1.0


@pytest.mark.parametrize("name", slow_routing.CASES)
def test_evaluation_takes_the_highest_logit(name):
    logits, mask, capacity = slow_routing.case(name)

    def best(g, s):
        return slow_routing.best(logits[g, s], 1, normalize=False)

    routing = Balanced().route(tf.constant(logits), tf.constant(mask), capacity, EVALUATION)
    slow_routing.assert_routes(routing, best, logits, mask, capacity)


def skewed():
    """256 tokens that prefer the first of 8 experts, some more than others."""
    logits = np.random.default_rng(3).normal(0, 1, [2, 256, 8])
    return (logits + np.arange(8)[::-1]).astype(np.float32)


def test_columns_of_the_plan_converge():
    mask = np.ones([2, 256], bool)
    mask[1, 200:] = False
    plan = tf.exp(sinkhorn(tf.constant(skewed()), tf.constant(mask), 50)).numpy()
    np.testing.assert_allclose(plan.sum(axis=2), 1.0, rtol=1e-5)
    loads = (plan * mask[..., None]).sum(axis=1)
    np.testing.assert_allclose(loads, [[256 / 8] * 8, [200 / 8] * 8], rtol=1e-3)


def test_choices_are_far_more_even_than_the_logits():
    mask = tf.ones([2, 256], tf.bool)
    shares = [
        Balanced().route(tf.constant(skewed()), mask, None, context).stats.load.numpy()
        for context in (EVALUATION, TRAINING)
    ]
    assert shares[0].max() > 4 / 8
    assert shares[1].max() < 1.3 / 8
    assert shares[1].min() > 0.7 / 8


def test_padding_changes_nothing():
    logits = skewed()[:1]
    alone = Balanced().route(logits[:, :200], tf.ones([1, 200], tf.bool), None, TRAINING)
    mask = tf.sequence_mask([200], 256)
    padded = Balanced().route(logits, mask, None, TRAINING)
    np.testing.assert_array_equal(padded.expert[:, :200], alone.expert)


def test_all_padding_stays_finite():
    routing = Balanced().route(skewed(), tf.zeros([2, 256], tf.bool), 3, TRAINING)
    assert not np.any(routing.dispatched)
    assert routing.stats.drop_rate.numpy() == 0.0
    plan = sinkhorn(tf.constant(skewed()), tf.zeros([2, 256], tf.bool), 16)
    assert np.all(np.isfinite(plan))


def test_the_gradient_is_the_gates_and_never_the_plans():
    logits = tf.constant(skewed()[:1, :32])
    mask = tf.ones([1, 32], tf.bool)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        routing = Balanced().route(logits, mask, None, TRAINING)
        gates = tf.gather(tf.nn.softmax(logits), routing.expert, batch_dims=2)
        plan = sinkhorn(logits, mask, 4)
    actual = tape.gradient(routing.weight, logits)
    np.testing.assert_allclose(actual, tape.gradient(gates, logits), atol=1e-6)
    assert np.abs(actual).max() > 0.01
    assert tape.gradient(plan, logits) is None


def test_bad_policy():
    with pytest.raises(ValueError, match=r"iterations must be >= 1, got 0"):
        Balanced(iterations=0)
