"""Saves checkpoints in a background thread: a step waits only for a copy of the state."""

import dataclasses
import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.training.checkpoint import Best, Checkpointer


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of an array; see jax.Shard."""

    index: tuple[slice, ...]
    data: np.ndarray
    replica_id: int


class HostArray(NamedTuple):
    """The parts of an array that this process saves, in host memory; see bundle.local_pieces."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_fully_addressable: bool
    addressable_shards: list[Shard]


class HostCopies:
    """Copies of the state in host memory, which later steps do not change.

    TensorFlow does not write into a tensor that is still in use, so on the CPU no copy is needed.
    JAX does, because a step's state is donated. Its copies reuse the memory of the copies before,
    because allocating new memory takes longer than copying.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, int], np.ndarray] = {}

    def take(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Copies tensors by name; overwrites the last copies."""
        return {name: self._copy(name, value) for name, value in tensors.items()}

    def _copy(self, name, value):
        if tf.is_tensor(value):
            with tf.device("CPU"):
                return tf.identity(value)
        if not hasattr(value, "addressable_shards"):
            return np.array(value)
        shards = [s for s in value.addressable_shards if s.replica_id == 0]
        kept = [Shard(s.index, self._fill((name, i), s.data), 0) for i, s in enumerate(shards)]
        return HostArray(value.shape, value.dtype, value.is_fully_addressable, kept)

    def _fill(self, key, data):
        data, memory = np.asarray(data), self._memory.get(key)
        if memory is None or (memory.shape, memory.dtype) != (data.shape, data.dtype):
            memory = self._memory[key] = np.empty_like(data)
        np.copyto(memory, data)
        return memory


class Saver:
    """Writes checkpoints in a background thread, one at a time.

    It is a context manager; leaving it waits for the last checkpoint. With several processes the
    threads agree through Process.background, which does not use the devices. A checkpoint appears
    when all processes have written it.
    """

    def __init__(self, checkpoints: Checkpointer):
        """Starts no thread yet; `checkpoints` writes."""
        background = checkpoints.process.background
        self._checkpoints = dataclasses.replace(checkpoints, process=background)
        self._copies = HostCopies()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception) -> None:
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self.check()
        elif self._error is not None:
            logging.error("%s", self._error)  # the other error is raised

    def save(self, step: int, tensors: Mapping[str, Any], best: Best) -> None:
        """Waits for the last save, copies the state, and begins to write it; arguments as of
        Checkpointer.save.

        Raises FloatingPointError, OSError: the last save failed; see Checkpointer.save.
        """
        self.wait()
        given = step, self._copies.take(tensors), best
        self._thread = threading.Thread(target=self._write, args=given, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a save that failed."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Waits for the current save, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _write(self, step, held, best):
        try:
            self._checkpoints.save(step, held, best)
        except BaseException as error:  # raised by the main thread
            self._error = error
