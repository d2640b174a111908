"""Ids, segments and tasks of the tokens of a batch.  B rows, T length."""

from typing import NamedTuple

import tensorflow as tf


class Tokens(NamedTuple):
    """One side of a batch."""

    ids: tf.Tensor  # int32 [B, T]
    # int32 [B, T], which sentence of a packed row a token belongs to, counted from 1; 0 is padding
    segments: tf.Tensor
    # int32 [B, T], for routers by task (see moe.router.ByTask); None without one
    tasks: tf.Tensor | None = None

    @property
    def mask(self) -> tf.Tensor:
        """bool [B, T], false for padding."""
        return tf.not_equal(self.segments, 0)

    @property
    def positions(self) -> tf.Tensor:
        """int32 [B, T]: the index of each token in its sentence, from 0; rows may be packed."""
        place = tf.range(tf.shape(self.segments)[1])
        before = place[None, :] < place[:, None]
        same = tf.equal(self.segments[:, :, None], self.segments[:, None, :])
        return tf.reduce_sum(tf.cast(same & before, tf.int32), axis=-1)
