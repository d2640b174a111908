"""The training loss.  N tokens, V vocabulary."""

import tensorflow as tf


@tf.custom_gradient
def smoothed_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, smoothing: float):
    """Cross-entropy against (1 - ε)·one_hot(label) + ε/V (Szegedy et al. 2016, section 7).

    Never materialises one-hot labels; the gradient reuses the softmax of the forward pass.

    Args:
        logits: float32 [N, V].
        labels: int32 [N].
        smoothing: ε, in [0, 1).

    Returns:
        Two float32 [N]: the smoothed cross-entropy, whose gradient flows into logits, and the plain
        negative log-likelihood in nats, for reporting (no gradient flows through it).
    """
    vocab_size = tf.shape(logits)[1]
    log_normalizer = tf.reduce_logsumexp(logits, axis=1)
    index = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), labels], axis=1)
    nll = log_normalizer - tf.gather_nd(logits, index)
    loss = (1.0 - smoothing) * nll
    loss += smoothing * (log_normalizer - tf.reduce_mean(logits, axis=1))

    def grad(d_loss, d_nll):
        del d_nll
        softmax = tf.exp(logits - log_normalizer[:, None])
        d_logits = (softmax - smoothing / tf.cast(vocab_size, tf.float32)) * d_loss[:, None]
        d_logits = tf.tensor_scatter_nd_sub(d_logits, index, (1.0 - smoothing) * d_loss)
        return d_logits, None, None

    return (loss, nll), grad
