"""Zeros that no compiler's host has to hold."""

from collections.abc import Sequence

import tensorflow as tf


def runtime_zeros(shape: Sequence[int], dtype: tf.DType, computed: tf.Tensor) -> tf.Tensor:
    """Zeros of a static shape, made of the sum of none of the elements of something computed.

    A constant would do, were it not that TensorFlow computes it, as large as all devices together
    hold it, on the machine that compiles.

    Args:
        shape, dtype: of the result.
        computed: any tensor that is no constant.
    """
    none = tf.reshape(computed[(0,) * computed.shape.rank], [1])[:0]
    return tf.fill(shape, tf.cast(tf.reduce_sum(none), dtype))
