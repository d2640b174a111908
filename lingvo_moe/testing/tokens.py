"""Tokens for tests of layers."""

import tensorflow as tf

from lingvo_moe.nn.tokens import Tokens


def tokens_of(mask, ids=None, tasks=None) -> Tokens:
    """Tokens of one sentence per row: real where mask bool [B, T] is true; ids 0 unless given."""
    segments = tf.cast(mask, tf.int32)
    return Tokens(tf.zeros_like(segments) if ids is None else ids, segments, tasks)
