"""Formats of weights in exports.  V vocabulary, M model, H hidden, A all heads.

Products are always float32: on a CPU, TensorFlow's int8 products take two and a half times as long,
and products of float32 and int8 (UniformQuantizedDotHybrid) eighty times.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.layer import WeightSpec

# The last letters of a matrix's dims -> the axis that a product sums over. For an embedding it is
# the last axis, because its rows are looked up and are the output channels of the softmax. All
# other weights are small, or gates of routers, and stay float32.
_SUMMED = {"MA": -2, "AM": -2, "MH": -2, "HM": -2, "VM": -1}


class Stored(NamedTuple):
    """A weight in a file."""

    # of the weight's shape: float32, bfloat16, int8, or the integers of a table
    values: np.ndarray | tf.Variable
    # float32 factor of int8 values; None for other types
    scale: np.ndarray | tf.Variable | None = None

    def unpack(self) -> tf.Tensor:
        """The weight: float32, or the integers of a table."""
        values = tf.convert_to_tensor(self.values)
        if self.scale is not None:
            return tf.cast(values, tf.float32) * self.scale
        return values if values.dtype.is_integer else tf.cast(values, tf.float32)


@dataclasses.dataclass(frozen=True)
class Storage:
    """The format of float32 matrices in a file: no change."""

    name: ClassVar[str] = "float32"  # the type of matrices in the file

    widens: ClassVar[bool] = False  # whether a graph must convert the stored values to float32

    def pack(self, weight: np.ndarray, spec: WeightSpec) -> Stored:
        """The stored form of a weight with this WeightSpec."""
        summed = _SUMMED.get(spec.dims[-2:])
        return Stored(weight) if summed is None else self.pack_matrix(weight, summed)

    def pack_matrix(self, matrix: np.ndarray, summed: int) -> Stored:
        """The stored form of one or more matrices [..., rows, columns].

        Args:
            matrix: float32.
            summed: the axis that its products sum over, -1 or -2.
        """
        del summed
        return Stored(matrix)


class BFloat16(Storage):
    """Half the size: 8 significant bits of each number."""

    name, widens = "bfloat16", True

    def pack_matrix(self, matrix, summed):
        del summed
        return Stored(matrix.astype(tf.bfloat16.as_numpy_dtype))


class Int8(Storage):
    """A quarter of the size: -127 to 127 times a scale for each output channel.

    The channels of an embedding are its rows.
    """

    name, widens = "int8", True

    def pack_matrix(self, matrix, summed):
        largest = np.abs(matrix).max(axis=summed, keepdims=True)
        scale = np.where(largest > 0, largest, 1.0).astype(np.float32) / np.float32(127.0)
        return Stored(np.rint(matrix / scale).astype(np.int8), scale)


FLOAT32 = Storage()
STORAGES = {storage.name: storage for storage in (FLOAT32, BFloat16(), Int8())}
