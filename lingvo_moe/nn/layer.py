"""Layers, their weights as data, and the context of a forward pass."""

import abc
import dataclasses
import math
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params
from lingvo_moe.nn import random
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True)
class Initializer(abc.ABC):
    """The initial values of a weight: a policy."""

    @abc.abstractmethod
    def __call__(self, shape: tuple[int, ...], seed: tf.Tensor) -> tf.Tensor:
        """A float32 tensor of this shape; seed is int32 [2]."""


@dataclasses.dataclass(frozen=True)
class Uniform(Initializer):
    """U(-limit, limit)."""

    limit: float

    def __call__(self, shape, seed):
        return random.uniform(shape, seed, -self.limit, self.limit)


@dataclasses.dataclass(frozen=True)
class Normal(Initializer):
    """N(0, stddev²)."""

    stddev: float

    def __call__(self, shape, seed):
        return random.normal(shape, seed) * self.stddev


@dataclasses.dataclass(frozen=True)
class Constant(Initializer):
    """Every element is value."""

    value: float

    def __call__(self, shape, seed):
        del seed
        return tf.fill(shape, tf.constant(self.value, tf.float32))


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """The specification of a weight. Raises ValueError: dims and shape differ in length."""

    shape: tuple[int, ...]  # its size in each dimension
    init: Initializer  # its initial values
    # one letter a dimension, from the alphabet of the layer's module. The letter "E" marks
    # dimensions of independent experts and "Y" those of equal layers: optimizers treat them as
    # batch dimensions. Sharding rules give the mesh axes of each letter; "." has none.
    dims: str
    # whether the weight is cast to the activations' dtype for use; False: it stays float32
    cast: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self):
        if len(self.dims) != len(self.shape):
            raise ValueError(f"dims {self.dims!r} must name each dimension of {self.shape}.")

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def stacked(self, size: int, letter: str) -> "WeightSpec":
        """The spec of `size` weights of this spec, stacked along a new first dimension `letter`."""
        return dataclasses.replace(self, shape=(size, *self.shape), dims=letter + self.dims)


class Context(NamedTuple):
    """Mode and randomness of a forward pass."""

    # int32 [2] for dropout and random routing; None in evaluation and decoding, where nothing is
    # random. `training` follows from it.
    seed: tf.Tensor | None = None

    @property
    def training(self) -> bool:
        """Whether dropout, random routing and training capacities apply."""
        return self.seed is not None

    def fold(self, name: str) -> "Context":
        """The context of a part: the same mode, an independent seed derived from the name."""
        if self.seed is None:
            return self
        return Context(random.fold_in(self.seed, zlib.crc32(name.encode()) & 0x7FFFFFFF))

    def uniform(self, shape: tf.Tensor, low: float = 0.0, high: float = 1.0) -> tf.Tensor:
        """float32 U[low, high) from the seed: calls with the same shape give the same numbers."""
        return random.uniform(shape, self.seed, low, high)


EVALUATION = Context()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(Params, abc.ABC):
    """A part of a model. It *is* its params: a frozen dataclass of hyperparameters.

    A layer has `weights()` and one or more pure functions of theta; the main one is `fprop`. It has
    no state, so one layer can be used with any number of thetas.
    """

    @abc.abstractmethod
    def weights(self) -> NestedMap:
        """The tree of WeightSpecs whose values fprop takes as theta."""


def init_theta(weights: NestedMap, seed: int | tf.Tensor) -> NestedMap:
    """Initial values, float32, for a tree of WeightSpecs.

    The seed of each weight is made of `seed` and its path, so a new weight changes no other.
    """
    theta = {
        path: spec.init(spec.shape, tf.stack([seed, zlib.crc32(path.encode()) & 0x7FFFFFFF]))
        for path, spec in weights.flatten()
    }
    return NestedMap.unflatten(theta)


def count_weights(weights: NestedMap) -> int:
    """The number of elements of all weights in a tree of WeightSpecs."""
    return sum(spec.size for _, spec in weights.flatten())


def stacked(weights: NestedMap, size: int, letter: str) -> NestedMap:
    """A tree of WeightSpecs with a new first dimension on every leaf."""
    return weights.map(lambda spec: spec.stacked(size, letter))


def bias_of(name: str) -> str:
    """The name of a matrix's bias."""
    return f"{name}_bias"


def biases(matrices: NestedMap) -> NestedMap:
    """WeightSpecs of a bias for each matrix [..., inputs, outputs]: zeros [..., outputs]."""

    def of(spec):
        shape, dims = (part[:-2] + part[-1:] for part in (spec.shape, spec.dims))
        return WeightSpec(shape, Constant(0.0), dims)

    return NestedMap({bias_of(name): of(spec) for name, spec in matrices.items()})


def layer_names(count: int) -> Iterator[str]:
    """`layer_00`, `layer_01`, …: names that sort in order, of three digits for more than 100."""
    width = max(2, len(str(count - 1)))
    return (f"layer_{i:0{width}d}" for i in range(count))


def dropout(inputs: tf.Tensor, rate: float, context: Context) -> tf.Tensor:
    """Zeroes elements with probability rate and scales the rest by 1/(1-rate); only in training.

    That scale is rounded to the elements' type, and the probability is the one that belongs to the
    rounded scale, so that the mean stays the same.
    """
    if not context.training or rate == 0.0:
        return inputs
    scale = float(inputs.dtype.as_numpy_dtype(1.0 / (1.0 - rate)))
    keep = random.keep_mask(inputs, context.seed, 1.0 - 1.0 / scale)
    return inputs * (tf.cast(keep, inputs.dtype) * tf.cast(scale, inputs.dtype))
