"""Tensors computed from stored ones by parts, so that a process reads only its own parts.

A stored tensor has a shape and is sliced by tuples of slices: training.bundle.StoredTensor, or an
array.
"""

import abc
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lingvo_moe.nn.layer import WeightSpec, init_theta
from lingvo_moe.nn.nested_map import NestedMap

Index = tuple[slice, ...]


class Lazy(abc.ABC):
    """A tensor that is computed when it is sliced.

    Attributes:
        shape: of the whole tensor.
    """

    shape: tuple[int, ...]

    @abc.abstractmethod
    def read(self, index: Index) -> np.ndarray:
        """The part selected by one slice of step 1 for each dimension."""

    def __getitem__(self, index: slice | Index) -> np.ndarray:
        """The part selected by slices of step 1; missing dimensions are complete."""
        index = index if isinstance(index, tuple) else (index,)
        return self.read((*index, *[slice(None)] * (len(self.shape) - len(index))))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """The whole tensor; each call computes it again."""
        del copy
        array = self[()]
        return array if dtype is None else array.astype(dtype)


class Permuted(Lazy):
    """Rows in another order: row i is the stored row source[i]. Rows are read one by one."""

    def __init__(self, stored: Any, source: np.ndarray):
        self._stored, self._source = stored, source
        self.shape = (len(source), *stored.shape[1:])

    def read(self, index):
        first, *rest = index
        rows = [self._stored[(slice(r, r + 1), *rest)] for r in self._source[first].tolist()]
        return np.concatenate([np.asarray(row) for row in rows])


class Rows(Lazy):
    """A table whose row i is the mean of the stored rows parents[i], or without parents row i of
    another table.

    Rows with themselves as parents are read separately. All others need the whole stored table.
    """

    def __init__(self, stored: Any, parents: Sequence[tuple[int, ...]], other: Any):
        """other: the table of rows without parents, sliced like a stored one."""
        self._stored, self._parents, self._other = stored, parents, other
        self.shape = (len(parents), *stored.shape[1:])

    def read(self, index):
        rows, *rest = index
        parents = self._parents[rows]
        start = rows.start or 0
        if all(of == (i,) for i, of in enumerate(parents, start)):
            return np.asarray(self._stored[index])
        table = np.asarray(self._stored[(slice(None), *rest)])
        result = table[[of[0] if of else 0 for of in parents]]
        for i, of in enumerate(parents):
            if len(of) > 1:
                result[i] = table[list(of)].mean(axis=0)
        if not all(parents):
            new = [i for i, of in enumerate(parents) if not of]
            result[new] = np.asarray(self._other[index])[new]
        return result


class Copies(Lazy):
    """Copies of a stored tensor along a new axis."""

    def __init__(self, stored: Any, axis: int, count: int):
        self._stored, self._axis, self._count = stored, axis, count
        self.shape = (*stored.shape[:axis], count, *stored.shape[axis:])

    def read(self, index):
        rest = (*index[: self._axis], *index[self._axis + 1 :])
        part = np.asarray(self._stored[rest])
        return np.stack([part] * len(range(self._count)[index[self._axis]]), self._axis)


class Slice(Lazy):
    """stored[i]: one layer of a scan."""

    def __init__(self, stored: Any, i: int):
        self._stored, self._i = stored, i
        self.shape = tuple(stored.shape[1:])

    def read(self, index):
        return np.asarray(self._stored[(slice(self._i, self._i + 1), *index)])[0]


class Stacked(Lazy):
    """Tensors of one shape along a new first axis: the layers of a scan."""

    def __init__(self, tensors: Sequence[Any]):
        self._tensors = tensors
        self.shape = (len(tensors), *tensors[0].shape)

    def read(self, index):
        first, *rest = index
        return np.stack([np.asarray(tensor[tuple(rest)]) for tensor in self._tensors[first]])


class Drawn(Lazy):
    """A weight drawn at random, for parts without another source."""

    def __init__(self, path: str, spec: WeightSpec, seed: int):
        self._weight, self._seed = NestedMap.unflatten({path: spec}), seed
        self.shape = spec.shape

    def read(self, index):
        return self._whole[index]

    @functools.cached_property
    def _whole(self):
        ((_, value),) = init_theta(self._weight, self._seed).flatten()
        return value.numpy()
