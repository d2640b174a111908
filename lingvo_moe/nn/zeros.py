"""Zeros that are not a constant of the program."""

from collections.abc import Sequence

import tensorflow as tf


def runtime_zeros(shape: Sequence[int], dtype: tf.DType, computed: tf.Tensor) -> tf.Tensor:
    """Zeros that depend on a runtime tensor, so that TensorFlow does not fold them into a constant,
    which the compiler would compute in full, for all devices."""
    none = tf.reshape(computed[(0,) * computed.shape.rank], [1])[:0]
    return tf.fill(shape, tf.cast(tf.reduce_sum(none), dtype))
