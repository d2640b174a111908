"""Tokens that may follow a hypothesis.

B sentences, K hypotheses, T steps, V vocabulary, P length of a prefix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from lingvo_moe.nn.smart_cond import smart_cond
from lingvo_moe.nn.special_tokens import PAD

if TYPE_CHECKING:
    from lingvo_moe.decoding.request import Request


def given(option: tf.Tensor | tuple | int) -> bool:
    """Whether an option may constrain: a tensor, as in an exported graph, always may, other values
    if not 0 or ()."""
    return tf.is_tensor(option) or bool(option)


def forced(prefix: tf.Tensor | tuple[int, ...]) -> int | tf.Tensor:
    """P, of a prefix int32 [P] or ()."""
    return tf.shape(prefix)[0] if given(prefix) else 0


def allowed(logits: tf.Tensor, ids: tf.Tensor, step: tf.Tensor, request: Request) -> tf.Tensor:
    """The logits, float32 [B, K, V], with the constraints of a request.

    -inf for tokens that the prefix or `no_repeat_ngram` forbids after the first `step` of ids,
    int32 [B, K, T]; lower by `repetition_penalty` for tokens that are among these ids.
    """
    prefix, params = request.prefix, request.params

    def lowered(logits, size, repeated, penalty):
        """Lower by the penalty for `repeated` tokens; not within the prefix, nor if size is 0."""
        if not given(size):
            return logits

        def after():
            found = _is_among(repeated(), logits) & (step >= forced(prefix))
            return tf.where(found, logits - penalty, logits)

        return smart_cond(size > 0, after, lambda: logits)

    cost, n = params.repetition_penalty, params.no_repeat_ngram
    logits = lowered(logits, cost, lambda: ids, cost)
    logits = lowered(logits, n, lambda: _repeats(ids, step, n), math.inf)
    if given(prefix):
        next_token = tf.gather(tf.pad(prefix, [[0, 1]]), tf.minimum(step, forced(prefix)))
        other = (tf.range(tf.shape(logits)[-1]) != next_token) & (step < forced(prefix))
        logits = tf.where(other, -math.inf, logits)
    return logits


def _is_among(tokens, logits):
    """bool, the shape of logits [B, K, V]: which of the V are among the tokens [B, K, T]."""
    batch, beams, size = tf.unstack(tf.shape(logits))
    rows = tf.range(batch * beams)[:, None] * size
    place = tf.reshape(rows + tf.reshape(tokens, [batch * beams, -1]), [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(place), place, batch * beams * size)
    return tf.reshape(counts > 0, tf.shape(logits))


def _repeats(ids, step, n):
    """int32 [B, K, T]: the tokens after earlier copies of the newest n-1 tokens, else PAD."""
    place = tf.range(tf.shape(ids)[2])
    matches = tf.broadcast_to((n > 0) & (place >= n - 1) & (place < step), tf.shape(ids))

    def narrow(back, matches):
        # tf.roll moves the last tokens to the front; the first line excludes them.
        same = tf.roll(ids, back, axis=2) == _newest(ids, step, back)[..., None]
        return back + 1, matches & same

    def unfinished(back, matches):
        del matches  # none if n > step: a step has fewer than T rounds, however large n is
        return (back < n) & (n <= step)

    _, matches = tf.while_loop(unfinished, narrow, (tf.constant(1), matches))
    return tf.where(matches, ids, PAD)


def _newest(ids, step, back):
    """int32 [B, K]: the token `back` positions before the end; the first one if there are fewer."""
    return tf.gather(ids, tf.maximum(step - back, 0), axis=2)
