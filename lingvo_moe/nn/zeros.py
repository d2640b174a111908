"""Zeros that are not a constant of the program."""

from collections.abc import Sequence

import tensorflow as tf


def runtime_zeros(shape: Sequence[int], dtype: tf.DType, computed: tf.Tensor) -> tf.Tensor:
    """Zeros that depend on a runtime tensor, so that TensorFlow does not fold them into a constant.

    The compiler would compute a folded constant in full, for all devices.

    Args:
        shape, dtype: of the result.
        computed: any tensor known at run time only.
    """
    none = tf.reshape(computed[(0,) * computed.shape.rank], [1])[:0]
    return tf.fill(shape, tf.cast(tf.reduce_sum(none), dtype))
