"""Ids, segments and tasks of the tokens of a batch.  B rows, T length."""

from typing import NamedTuple

import tensorflow as tf


class Tokens(NamedTuple):
    """One side of a batch.

    Attributes:
        ids: int32 [B, T].
        segments: int32 [B, T], which sentence of a packed row a token belongs to, counted from 1;
            0 is padding.
        tasks: int32 [B, T], for routers by task (see layers.router.ByTask); None without one.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    tasks: tf.Tensor | None = None

    @property
    def mask(self) -> tf.Tensor:
        """bool [B, T], false for padding."""
        return tf.not_equal(self.segments, 0)
