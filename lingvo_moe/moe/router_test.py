import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.router import ByTask, ByTaskAndToken, ByToken, token_mean
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.testing.tokens import tokens_of

TRAINING = Context(tf.constant([5, 6]))


def test_statistics_by_hand():
    # Token 0: logits ln [1, 3], so logsumexp ln 4, gates [1/4, 3/4]. Token 1: logits 0, 0, so ln 2
    # and [1/2, 1/2]. Token 2 is padding.
    theta = NestedMap(gate=tf.constant([[0.0, math.log(3.0)]], tf.float32))
    tokens = tf.constant([[[1.0], [0.0], [100.0]]])
    mask = tf.constant([[True, True, False]])
    output = ByToken().fprop(theta, tokens, tokens_of(mask), TRAINING)
    np.testing.assert_allclose(output.logits[0, :2], [[0, math.log(3)], [0, 0]], atol=1e-6)
    z_loss = (math.log(4) ** 2 + math.log(2) ** 2) / 2
    entropy = (-0.25 * math.log(0.25) - 0.75 * math.log(0.75) + math.log(2)) / 2
    np.testing.assert_allclose(output.stats.z_loss, z_loss, rtol=1e-6)
    np.testing.assert_allclose(output.stats.importance, [0.375, 0.625], rtol=1e-6)
    np.testing.assert_allclose(output.stats.entropy, entropy, rtol=1e-6)


def test_statistics_against_a_loop():
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=[3, 5, 4])
    mask = np.arange(5) < np.array([[5], [2], [0]])
    router = ByToken()
    theta = init_theta(router.weights(4, 6), 0)
    stats = router.fprop(theta, tf.constant(tokens, tf.float32), tokens_of(mask), EVALUATION).stats
    z_loss, entropy, importance = [], [], []
    for token in tokens[mask]:
        scores = np.exp(token @ theta.gate.numpy())
        p = scores / sum(scores)
        z_loss.append(np.log(sum(scores)) ** 2)
        entropy.append(-sum(x * np.log(x) for x in p))
        importance.append(p)
    np.testing.assert_allclose(stats.z_loss, np.mean(z_loss), rtol=1e-5)
    np.testing.assert_allclose(stats.entropy, np.mean(entropy), rtol=1e-5)
    np.testing.assert_allclose(stats.importance, np.mean(importance, axis=0), rtol=1e-5)


def test_the_z_loss_pulls_logits_towards_zero():
    router = ByToken()
    theta = init_theta(router.weights(4, 6), 0)
    tokens = tf.constant(np.random.default_rng(0).normal(size=[1, 50, 4]), tf.float32)
    mask = tf.ones([1, 50], tf.bool)

    def z_loss(gate):
        return router.fprop(NestedMap(gate=gate), tokens, tokens_of(mask), TRAINING).stats.z_loss

    with tf.GradientTape() as tape:
        tape.watch(theta.gate)
        loss = z_loss(theta.gate)
    gradient = tape.gradient(loss, theta.gate)
    assert z_loss(theta.gate - 0.05 * gradient) < loss
    # The numerical slope along the gradient.
    unit = gradient / tf.norm(gradient)
    slope = (z_loss(theta.gate + 1e-2 * unit) - z_loss(theta.gate - 1e-2 * unit)) / 2e-2
    np.testing.assert_allclose(slope, tf.norm(gradient), rtol=1e-2)


def test_jitter_multiplies_inputs_within_its_bounds_and_only_in_training():
    # With the identity for a gate, logits are what the router reads.
    router = ByToken(jitter=0.1)
    theta = NestedMap(gate=tf.eye(3))
    tokens, everywhere = tf.fill([1, 1000, 3], 2.0), tokens_of(tf.ones([1, 1000], tf.bool))
    np.testing.assert_array_equal(
        router.fprop(theta, tokens, everywhere, EVALUATION).logits, tokens
    )
    factors = router.fprop(theta, tokens, everywhere, TRAINING).logits / 2.0
    assert 0.9 <= np.min(factors) < 0.901
    assert 1.099 < np.max(factors) <= 1.1
    assert abs(np.mean(factors) - 1) < 0.005


def test_logits_are_float32_whatever_the_activations():
    router = ByToken()
    theta = NestedMap(gate=tf.ones([3, 2], tf.bfloat16))
    # 256 + 1 + 0.5 is not a bfloat16: a sum kept in bfloat16 would be 256 or 258.
    tokens = tf.constant([[[256.0, 1.0, 0.5]]], tf.bfloat16)
    output = router.fprop(theta, tokens, tokens_of(tf.ones([1, 1], tf.bool)), TRAINING)
    assert output.logits.dtype == tf.float32
    np.testing.assert_array_equal(output.logits, [[[257.5, 257.5]]])


def test_the_mean_over_no_tokens_is_zero():
    assert token_mean(tf.ones([2, 3]), tf.zeros([2, 3], tf.bool)) == 0.0
    np.testing.assert_array_equal(token_mean(tf.ones([2, 3, 2]), tf.zeros([2, 3], tf.bool)), [0, 0])


def test_by_task_every_token_of_a_task_has_its_row_of_the_table():
    router = ByTask(task="source", num_tasks=5)
    theta = init_theta(router.weights(3, 4), 0)
    tasks = tf.constant([[2, 2, 0], [1, 1, 1]])
    tokens = tokens_of(tf.ones([2, 3], tf.bool), tasks=tasks)
    logits = router.fprop(theta, tf.random.stateless_normal([2, 3, 3], [1, 2]), tokens, TRAINING)[0]
    np.testing.assert_array_equal(logits, theta.task_gate.numpy()[tasks.numpy()])


def test_by_task_and_token_is_the_sum_of_both():
    router = ByTaskAndToken(task="target", num_tasks=5)
    theta = init_theta(router.weights(3, 4), 0)
    tasks, inputs = np.array([[2, 0]]), np.random.default_rng(0).normal(size=[1, 2, 3])
    tokens = tokens_of(tf.ones([1, 2], tf.bool), tasks=tf.constant(tasks, tf.int32))
    logits = router.fprop(theta, tf.constant(inputs, tf.float32), tokens, TRAINING).logits
    sums = theta.task_gate.numpy()[tasks] + inputs @ theta.gate.numpy()
    np.testing.assert_allclose(logits, sums, rtol=1e-5)


def test_tasks_are_numbered_by_name():
    pairs = ["de-en", "en-de", "fr-en", "zh_TW-en"]
    assert ByTask(task="source").task_ids(pairs) == [0, 1, 2, 3]
    assert ByTask(task="target").task_ids(pairs) == [1, 0, 1, 1]
    assert ByTask(task="pair").task_ids(["fr-en", "de-en"]) == [1, 0]


def test_bad_tasks_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"^task must be in .*got 'family'"):
        ByTask(task="family")
    with pytest.raises(ValueError, match=r"num_tasks must be >= 1, got 0"):
        ByTask(num_tasks=0)
    with pytest.raises(ValueError, match=r"2 tasks .*num_tasks is 1; pass --set"):
        ByTask(num_tasks=1).task_ids(["de-en", "fr-en"])
    tokens = tokens_of(tf.ones([1, 1], tf.bool))
    with pytest.raises(ValueError, match=r"got none: give the source"):
        ByTask().fprop(NestedMap(task_gate=tf.ones([128, 2])), tf.ones([1, 1, 3]), tokens, TRAINING)
    with pytest.raises(ValueError, match=r"^jitter must be in \[0, 1\), got 1.0"):
        ByToken(jitter=1.0)
