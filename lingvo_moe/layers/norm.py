"""Normalisation.  M model."""

import abc
import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveFloat
from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp import copies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm(Params, abc.ABC):
    """The normalisation of a model's layers: a policy."""

    @abc.abstractmethod
    def weights(self, model_dim: int) -> NestedMap:
        """Theta."""

    @abc.abstractmethod
    def fprop(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Normalises the last dimension of inputs [..., M]; statistics are float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(Norm):
    """x / RMS(x) · scale, without mean or bias (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    epsilon: PositiveFloat = 1e-6

    def weights(self, model_dim):
        """Theta: scale [M]."""
        return NestedMap(scale=WeightSpec((model_dim,), Constant(1.0), "M"))

    def fprop(self, theta, inputs):
        x = tf.cast(inputs, tf.float32)
        x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = tf.cast(theta.scale, inputs.dtype)
        return tf.cast(x, inputs.dtype) * copies.per_row(scale, 1, inputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm):
    """(x - mean) / standard deviation · scale + bias (Ba et al. 2016, arXiv 1607.06450)."""

    epsilon: PositiveFloat = 1e-5

    def weights(self, model_dim):
        """Theta: scale and bias [M]."""
        return NestedMap(
            scale=WeightSpec((model_dim,), Constant(1.0), "M"),
            bias=WeightSpec((model_dim,), Constant(0.0), "M"),
        )

    def fprop(self, theta, inputs):
        x = tf.cast(inputs, tf.float32)
        x -= tf.reduce_mean(x, axis=-1, keepdims=True)
        x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale, bias = (
            copies.per_row(tf.cast(weight, inputs.dtype), 1, inputs)
            for weight in (theta.scale, theta.bias)
        )
        return tf.cast(x, inputs.dtype) * scale + bias
