"""Tensors computed from stored ones by parts, so that a process reads only its own parts.

A stored tensor has a shape and is sliced by tuples of slices: training.bundle.StoredTensor, or an
array.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lingvo_moe.nn.layer import WeightSpec, init_theta
from lingvo_moe.nn.nested_map import NestedMap

Index = tuple[slice, ...]


class Lazy:
    """A tensor that is computed when it is sliced.

    Attributes:
        shape: of the whole tensor.
    """

    def __init__(self, shape: Sequence[int], read: Callable[[Index], np.ndarray]):
        """read: gives the part selected by one slice of step 1 for each dimension."""
        self.shape, self._read = tuple(shape), read

    def __getitem__(self, index: slice | Index) -> np.ndarray:
        """The part selected by slices of step 1; missing dimensions are complete."""
        index = index if isinstance(index, tuple) else (index,)
        return self._read((*index, *[slice(None)] * (len(self.shape) - len(index))))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """The whole tensor; each call computes it again."""
        del copy
        array = self[()]
        return array if dtype is None else array.astype(dtype)


def permuted(stored: Any, source: np.ndarray) -> Lazy:
    """Rows in another order: row i is the stored row source[i]. Rows are read one by one."""

    def read(index):
        first, *rest = index
        rows = [stored[(slice(r, r + 1), *rest)] for r in source[first].tolist()]
        return np.concatenate([np.asarray(row) for row in rows])

    return Lazy((len(source), *stored.shape[1:]), read)


def from_rows(stored: Any, parents: Sequence[tuple[int, ...]], other: Any) -> Lazy:
    """A table whose row i is the mean of the stored rows parents[i], or without parents row i of
    another table, which is sliced like a stored one.

    Rows with themselves as parents are read separately. All others need the whole stored table.
    """

    def read(index):
        rows, *rest = index
        of_rows = parents[rows]
        if all(of == (i,) for i, of in enumerate(of_rows, rows.start or 0)):
            return np.asarray(stored[index])
        table = np.asarray(stored[(slice(None), *rest)])
        result = table[[of[0] if of else 0 for of in of_rows]]
        for i, of in enumerate(of_rows):
            if len(of) > 1:
                result[i] = table[list(of)].mean(axis=0)
        if not all(of_rows):
            new = [i for i, of in enumerate(of_rows) if not of]
            result[new] = np.asarray(other[index])[new]
        return result

    return Lazy((len(parents), *stored.shape[1:]), read)


def copies(stored: Any, axis: int, count: int) -> Lazy:
    """Copies of a stored tensor along a new axis."""

    def read(index):
        part = np.asarray(stored[(*index[:axis], *index[axis + 1 :])])
        return np.stack([part] * len(range(count)[index[axis]]), axis)

    return Lazy((*stored.shape[:axis], count, *stored.shape[axis:]), read)


def layer_of(stored: Any, i: int) -> Lazy:
    """stored[i]: one layer of a scan."""
    return Lazy(stored.shape[1:], lambda index: np.asarray(stored[(slice(i, i + 1), *index)])[0])


def stack(tensors: Sequence[Any]) -> Lazy:
    """Tensors of one shape along a new first axis: the layers of a scan."""

    def read(index):
        first, *rest = index
        return np.stack([np.asarray(tensor[tuple(rest)]) for tensor in tensors[first]])

    return Lazy((len(tensors), *tensors[0].shape), read)


def drawn(path: str, spec: WeightSpec, seed: int) -> Lazy:
    """A weight drawn at random, for parts without another source."""

    @functools.cache
    def whole():
        ((_, value),) = init_theta(NestedMap.unflatten({path: spec}), seed).flatten()
        return value.numpy()

    return Lazy(spec.shape, lambda index: whole()[index])
