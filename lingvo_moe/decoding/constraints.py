"""Tokens that may not follow a hypothesis.

B sentences, K hypotheses, T steps, V vocabulary, X bans.
"""

import tensorflow as tf

from lingvo_moe.core.tokens import PAD


def banned(
    ids: tf.Tensor,
    step: tf.Tensor,
    vocab_size: int,
    no_repeat_ngram: int,
    forbidden: tuple[tuple[int, ...], ...],
) -> tf.Tensor:
    """Tokens that would repeat an n-gram or complete a forbidden sequence.

    Args:
        ids: int32 [B, K, T], the tokens of each hypothesis; those from `step` on are ignored.
        step: int32 [], the number of tokens.
        vocab_size: V.
        no_repeat_ngram: n; 0 to allow all repetitions.
        forbidden: sequences of token ids.

    Returns:
        bool [B, K, V].

    Raises:
        ValueError: a forbidden token that is not in the vocabulary.
    """
    largest = max((max(sequence) for sequence in forbidden), default=0)
    if largest >= vocab_size:
        raise ValueError(
            f"decoding.forbidden has the token {largest}; the vocabulary's are below {vocab_size}."
        )
    bans = [_completes(ids, step, sequence) for sequence in forbidden]
    if no_repeat_ngram:
        bans.append(_repeats(ids, step, no_repeat_ngram))
    tokens = tf.concat(bans, axis=-1)  # [B, K, X]
    shape = tf.shape(tokens)
    rows = tf.range(shape[0] * shape[1])[:, None] * vocab_size
    place = tf.reshape(rows + tf.reshape(tokens, [-1, shape[2]]), [-1])
    counts = tf.math.unsorted_segment_sum(
        tf.ones_like(place), place, shape[0] * shape[1] * vocab_size
    )
    return tf.reshape(counts > 0, [-1, ids.shape[1], vocab_size])


def _completes(ids, step, sequence):
    """int32 [B, K, 1]: the last token of the sequence after the others, else PAD."""
    *others, last = sequence
    matches = tf.fill(tf.shape(ids)[:2], step >= len(others))
    for back, token in enumerate(reversed(others), 1):
        matches &= _newest(ids, step, back) == token
    return tf.where(matches, last, PAD)[..., None]


def _repeats(ids, step, n):
    """int32 [B, K, T]: the tokens after earlier copies of the newest n-1 tokens, else PAD."""
    place = tf.range(tf.shape(ids)[2])
    matches = tf.broadcast_to((place >= n - 1) & (place < step), tf.shape(ids))
    for back in range(1, n):
        # tf.roll moves the last tokens to the front; the first line excludes them.
        matches &= tf.roll(ids, back, axis=2) == _newest(ids, step, back)[..., None]
    return tf.where(matches, ids, PAD)


def _newest(ids, step, back):
    """int32 [B, K]: the token `back` positions before the end; the first one if there are fewer."""
    return tf.gather(ids, tf.maximum(step - back, 0), axis=2)
