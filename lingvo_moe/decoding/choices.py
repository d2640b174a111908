"""The best next tokens.  B sentences, K hypotheses, V vocabulary, C choices."""

from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.layers.embedding import LOGITS_MULTIPLE
from lingvo_moe.nn.smart_cond import size_of

_CHUNK = LOGITS_MULTIPLE


class Choices(NamedTuple):
    """The best tokens after each hypothesis, best first."""

    ids: tf.Tensor  # int32 [B, K, C]
    logits: tf.Tensor  # float32 [B, K, C], the logits of ids
    log_total: tf.Tensor  # float32 [B, K], log Σ exp of all logits


def best_choices(logits: tf.Tensor, count: int | tf.Tensor, max_count: int) -> Choices:
    """The C best of V tokens; of equal ones the lower id first.

    If V is divided into chunks, the C best are in the C chunks with the largest maxima, so only
    these are searched.

    Args:
        logits: float32 [B, K, V].
        count: C, at most V.
        max_count: the largest C of this graph.
    """
    size = logits.shape[-1]
    if size is None or size % _CHUNK or size <= 2 * max_count * _CHUNK:
        best, ids = tf.math.top_k(logits, count)
        return Choices(ids, best, tf.reduce_logsumexp(logits, axis=-1))
    beams = size_of(logits, 1)
    chunks = tf.reshape(logits, [-1, size // _CHUNK, _CHUNK])
    maxima = tf.reduce_max(chunks, axis=-1)  # [B·K, V / chunk]
    chunk = tf.math.top_k(maxima, count).indices
    chunk = -tf.math.top_k(-chunk, count).values  # in order, for ties
    among = tf.reshape(tf.gather(chunks, chunk, batch_dims=1), [-1, count * _CHUNK])
    best, place = tf.math.top_k(among, count)
    ids = tf.gather(chunk, place // _CHUNK, batch_dims=1) * _CHUNK + place % _CHUNK
    ids, best = (tf.reshape(x, [-1, beams, count]) for x in (ids, best))
    most = best[..., :1]
    total = tf.reduce_sum(tf.exp(logits - most), axis=-1)
    return Choices(ids, best, most[..., 0] + tf.math.log(total))
