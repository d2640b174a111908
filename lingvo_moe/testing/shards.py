"""Several processes simulated in one: arrays in shards over their devices, and their barrier."""

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shard:
    """The shard of one device: the part `index` of the array, copy number replica_id."""

    index: tuple[slice, ...]
    data: np.ndarray
    replica_id: int


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The shards of an array in one process, with the interface of jax.Array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    addressable_shards: list[Shard]
    is_fully_addressable: bool

    @classmethod
    def by_process(
        cls, array: np.ndarray, grid: tuple[int, ...], processes: int
    ) -> list["Sharded"]:
        """An array split into a grid of parts, one result for each process.

        There are as many devices as parts or processes, whichever is more; device d belongs to
        process d % processes and holds part d % parts.
        """
        sizes = [length // parts for length, parts in zip(array.shape, grid, strict=True)]
        assert array.shape == tuple(n * p for n, p in zip(sizes, grid, strict=True)), "uneven"
        indices = [
            tuple(slice(i * size, (i + 1) * size) for i, size in zip(cell, sizes, strict=True))
            for cell in itertools.product(*map(range, grid))
        ]
        held: list[list[Shard]] = [[] for _ in range(processes)]
        for device in range(max(processes, math.prod(grid))):
            replica, part = divmod(device, len(indices))
            shard = Shard(indices[part], array[indices[part]].copy(), replica)
            held[device % processes].append(shard)
        return [cls(array.shape, array.dtype, shards, processes == 1) for shards in held]

    @classmethod
    def local(cls, array: np.ndarray, grid: tuple[int, ...]) -> "Sharded":
        """An array on the devices of one process alone."""
        return cls.by_process(array, grid, 1)[0]


class Barrier:
    """The barrier of threads that simulate processes; they wait at most `timeout` seconds."""

    def __init__(self, processes: int, timeout: float = 30):
        self._barrier = threading.Barrier(processes, timeout=timeout)
        self._values: dict[int, int] = {}

    def minimum_of(self, process: int) -> Callable[[int], int]:
        """The function with which a process gets the minimum of the values of all processes."""

        def minimum(value: int) -> int:
            self._values[process] = value
            self._barrier.wait()
            smallest = min(self._values.values())
            self._barrier.wait()  # no process writes the next value before all have read this one
            return smallest

        return minimum
