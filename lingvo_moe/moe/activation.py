"""Activations of feed-forward networks."""

import abc
import dataclasses
from typing import ClassVar

import tensorflow as tf

from lingvo_moe.config.fields import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation(Params, abc.ABC):
    """The elementwise function of a feed-forward network's hidden layer.

    A gated activation is applied to a second product x·wg, and the result is multiplied by x·wi
    (Shazeer 2020, arXiv 2002.05202). A gated network has 1.5 times the weights for the same H.
    """

    gated: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """The same shape and type."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReLU(Activation):
    """max(x, 0)."""

    def __call__(self, inputs):
        return tf.nn.relu(inputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GELU(Activation):
    """x·Φ(x), Φ the normal distribution (Hendrycks & Gimpel 2016, arXiv 1606.08415); exact."""

    def __call__(self, inputs):
        return tf.nn.gelu(inputs, approximate=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GEGLU(GELU):
    """GELU(x·wg) ⊙ x·wi (Shazeer 2020, equation 6, without biases)."""

    gated: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwiGLU(Activation):
    """Swish(x·wg) ⊙ x·wi with Swish(x) = x·sigmoid(x) (Shazeer 2020, equation 6)."""

    gated: ClassVar[bool] = True

    def __call__(self, inputs):
        return tf.nn.silu(inputs)
