"""Normalisation.  M model."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import PositiveFloat, PositiveInt
from lingvo_moe.core.layer import Constant, Layer, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding import copies


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(Layer):
    """x / RMS(x) · scale, without mean or bias (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    model_dim: PositiveInt
    epsilon: PositiveFloat = 1e-6

    def weights(self):
        """Theta: scale [M]."""
        return NestedMap(scale=WeightSpec((self.model_dim,), Constant(1.0), "M"))

    def fprop(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Normalises the last dimension of inputs [..., M]; statistics are float32."""
        x = tf.cast(inputs, tf.float32)
        x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = tf.cast(theta.scale, inputs.dtype)
        return tf.cast(x, inputs.dtype) * copies.per_row(scale, 1, inputs)
