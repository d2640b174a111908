"""Conditions and sizes that are static, known while a graph is built, or tensors."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def smart_cond(condition: bool | tf.Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]):
    """Returns then() or otherwise(). A Python bool chooses now, a tensor bool [] when the graph
    runs."""
    if tf.is_tensor(condition):
        return tf.cond(condition, then, otherwise)
    return then() if condition else otherwise()


def size_of(tensor: tf.Tensor, axis: int) -> int | tf.Tensor:
    """The size of an axis: an int if it is static, else int32 []."""
    size = tensor.shape[axis]
    return tf.shape(tensor)[axis] if size is None else size
