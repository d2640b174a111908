"""The training loss.  B batch, T length, N tokens (B·T), V vocabulary, M model."""

import functools
import math

import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.tensorflow_private import in_xla
from lingvo_moe.sbp import copies

_LEAST = math.exp(-85.0)  # a probability above the smallest float32


def smoothed_cross_entropy(
    hidden: tf.Tensor, table: tf.Tensor, labels: tf.Tensor, smoothing: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy of softmax(hidden · tableᵀ) against (1 - ε)·one_hot(label) + ε/V.

    Label smoothing is that of Szegedy et al. 2016, section 7. To save memory, the softmax, in the
    type of hidden, is the only tensor [N, V] that is kept for the gradient. There are no one-hot
    labels. Of the gradient of the logits, softmax - (1 - ε)·one_hot(label) - ε/V times a number for
    each token, the parts of rank 1 are multiplied with table and hidden separately.

    Args:
        hidden: [B, T, M].
        table: [V, M], of the same type; or with D copies [D, V, M] (sbp/copies.py).
        labels: int32 [B, T].
        smoothing: ε, in [0, 1).

    Returns:
        Two float32 [B, T]: the smoothed cross-entropy, whose gradient flows into hidden and table,
        and the plain negative log-likelihood in nats, for reporting (no gradient flows through it).
        It counts as 85 nats where it is more; the gradient is exact there too.
    """
    size, flat_labels = table.shape[-2], tf.reshape(labels, [-1])
    index = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), flat_labels], axis=1)

    @custom_gradient
    def run(hidden, table):
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        logits = copies.einsum("BTM,VM->BTV", hidden, table)
        logits = tf.reshape(logits, [-1, size])
        softmax = _softmax(logits)
        likelihood, logit = (
            tf.cast(tf.gather_nd(of, index), tf.float32) for of in (softmax, logits)
        )
        nll = -tf.math.log(tf.maximum(likelihood, _LEAST))
        log_normalizer = nll + logit
        mean_row = tf.reduce_mean(tf.cast(table, tf.float32), axis=-2)
        mean_logit = copies.einsum("NM,M->N", tf.cast(flat, tf.float32), mean_row)
        loss = (1.0 - smoothing) * nll + smoothing * (log_normalizer - mean_logit)

        def grad(d_loss, d_nll):
            del d_nll
            d_loss = tf.reshape(d_loss, [-1, 1])
            of_label = tf.cast(likelihood - (1.0 - smoothing), softmax.dtype)
            pulled = tf.tensor_scatter_nd_update(softmax, index, of_label)
            d_hidden = tf.cast(copies.matmul(pulled, table), tf.float32)
            d_hidden -= smoothing * copies.per_row(mean_row, 1, d_hidden)
            d_hidden = tf.cast(d_loss * d_hidden, hidden.dtype)
            weighted = tf.cast(d_loss, hidden.dtype) * flat
            pulled, weighted = (copies.split_rows(x, table, 2) for x in (pulled, weighted))
            d_table = tf.matmul(pulled, weighted, transpose_a=True)
            evenly = tf.reduce_sum(tf.cast(weighted, tf.float32), axis=-2, keepdims=True)
            d_table -= tf.cast(smoothing / size * evenly, table.dtype)
            return tf.reshape(d_hidden, tf.shape(hidden)), d_table

        shape = tf.shape(labels)
        return (tf.reshape(loss, shape), tf.reshape(nll, shape)), grad

    return run(hidden, table)


def _softmax(logits):
    """The softmax in the type of the logits, computed in float32."""
    if not in_xla() and _rounds_once(logits.dtype):
        return tf.nn.softmax(logits)
    return tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), logits.dtype)


@functools.cache
def _rounds_once(dtype: tf.DType) -> bool:
    """Whether the processor's own softmax of a type rounds its result alone: oneDNN's does, and
    makes no float32 tensor of the whole; TensorFlow's for other processors rounds each sum."""
    with tf.init_scope():
        logits = tf.cast(tf.random.stateless_normal([1, 4096], [0, 0]), dtype)
        exact = tf.nn.softmax(tf.cast(logits, tf.float32))
        error = tf.cast(tf.nn.softmax(logits), tf.float32) / exact - 1.0
        return bool(tf.reduce_max(tf.abs(error)) <= 2.0**-8)
