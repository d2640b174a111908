import numpy as np
import tensorflow as tf

from lingvo_moe.layers.loss import smoothed_cross_entropy


def test_numbers_by_hand():
    # Logits 0 everywhere: both losses are ln V whatever the smoothing.
    loss, nll = smoothed_cross_entropy(tf.zeros([1, 8]), tf.constant([3]), 0.1)
    np.testing.assert_allclose([loss[0], nll[0]], [np.log(8)] * 2, rtol=1e-6)


def test_values_and_gradient_equal_keras():
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(size=(5, 7)), tf.float32)
    labels = tf.constant([0, 6, 3, 3, 1])
    weights = tf.constant(rng.normal(size=5), tf.float32)
    keras = tf.keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1, reduction="none"
    )
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        loss, nll = smoothed_cross_entropy(logits, labels, 0.1)
        ours = tf.reduce_sum(loss * weights)
        expected_loss = keras(tf.one_hot(labels, 7), logits)
        theirs = tf.reduce_sum(expected_loss * weights)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(
        nll, tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), rtol=1e-5
    )
    np.testing.assert_allclose(
        tape.gradient(ours, logits), tape.gradient(theirs, logits), rtol=1e-4, atol=1e-6
    )
