import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.loss import smoothed_cross_entropy

BATCH, LENGTH, MODEL, VOCABULARY = 2, 3, 4, 7
LABELS = tf.constant([[0, 6, 3], [3, 1, 5]])


def random(*shape, seed=0, scale=1.0):
    return tf.constant(np.random.default_rng(seed).normal(0, scale, shape), tf.float32)


def through_keras(hidden, table, labels, smoothing):
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="none"
    )
    logits = tf.einsum("BTM,VM->BTV", hidden, table)
    return loss(tf.one_hot(labels, table.shape[0]), logits), logits


def test_numbers_by_hand():
    # Logits 0 everywhere: both losses are ln V whatever the smoothing.
    loss, nll = smoothed_cross_entropy(
        tf.zeros([1, 1, 2]), tf.zeros([8, 2]), tf.constant([[3]]), 0.1
    )
    np.testing.assert_allclose([loss[0, 0], nll[0, 0]], [np.log(8)] * 2, rtol=1e-6)
    # Logits 0, ln 3: probabilities 1/4, 3/4. A quarter of the label's mass is spread evenly:
    # 0.75·ln(4/3) + 0.25·(ln 4 + ln(4/3))/2.
    table = tf.constant([[0.0], [np.log(3.0)]], tf.float32)
    loss, nll = smoothed_cross_entropy(tf.ones([1, 1, 1]), table, tf.constant([[1]]), 0.25)
    np.testing.assert_allclose(nll[0, 0], np.log(4 / 3), rtol=1e-6)
    expected = 0.75 * np.log(4 / 3) + 0.125 * (np.log(4) + np.log(4 / 3))
    np.testing.assert_allclose(loss[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0])  # 30: probabilities down to e^-200
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_values_and_gradients_equal_keras(smoothing, scale):
    hidden = random(BATCH, LENGTH, MODEL, scale=scale)
    table, weights = random(VOCABULARY, MODEL, seed=1), random(BATCH, LENGTH, seed=2)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([hidden, table])
        loss, nll = smoothed_cross_entropy(hidden, table, LABELS, smoothing)
        ours = tf.reduce_sum(loss * weights)
        expected, logits = through_keras(hidden, table, LABELS, smoothing)
        theirs = tf.reduce_sum(expected * weights)
    expected_nll = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits)
    np.testing.assert_allclose(nll, np.minimum(expected_nll, 85.0), rtol=1e-5, atol=1e-5)
    within = expected_nll.numpy() < 85
    np.testing.assert_allclose(loss[within], expected[within], rtol=1e-5, atol=1e-5)
    for source in (hidden, table):
        gradient, expected = tape.gradient(ours, source), tape.gradient(theirs, source)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5 * scale)


def test_no_gradient_through_the_likelihood():
    hidden, table = random(BATCH, LENGTH, MODEL), random(VOCABULARY, MODEL, seed=1)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        nll = tf.reduce_sum(smoothed_cross_entropy(hidden, table, LABELS, 0.1)[1])
    np.testing.assert_array_equal(tape.gradient(nll, hidden), tf.zeros_like(hidden))


@pytest.mark.parametrize("xla", [False, True])
def test_bfloat16_stays_near_float32(xla):
    """The sums over the vocabulary, here of 4,000, are in float32."""
    hidden, table = random(BATCH, LENGTH, MODEL), random(4000, MODEL, seed=1)

    @tf.function(jit_compile=xla)
    def run(dtype):
        with tf.GradientTape() as tape:
            tape.watch([hidden, table])
            losses = smoothed_cross_entropy(
                tf.cast(hidden, dtype), tf.cast(table, dtype), LABELS, 0.1
            )
        return *losses, *tape.gradient(losses[0], [hidden, table])

    exact, near = run(tf.float32), run(tf.bfloat16)
    assert near[0].dtype == near[1].dtype == tf.float32
    for one, other in zip(exact, near, strict=True):
        np.testing.assert_allclose(other, one, atol=0.03)
    halves = (tf.cast(tensor, tf.bfloat16) for tensor in (hidden, table))
    logits = tf.cast(tf.einsum("BTM,VM->BTV", *halves), tf.float32)
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits)
    np.testing.assert_allclose(near[1], expected, atol=2.0**-8)  # one rounding of the likelihood
