"""Processes that pack the training input, so that the training process does not have to.

Each worker packs some of the virtual shards of this process. So the batches and the saved state are
the same for any number of workers. Workers import neither TensorFlow nor JAX.
"""

import contextlib
import dataclasses
import os
import pickle
import signal
import subprocess
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.config import child
from lingvo_moe.data.pipeline import Batches, InputPosition, Part, TrainInput
from lingvo_moe.nn.nested_map import NestedMap


@contextlib.contextmanager
def packed_by(workers: int, source: TrainInput) -> Iterator[Batches]:
    """The batches of an input, packed by worker processes, which end with the `with` block.

    Args:
        workers: their number; 0 packs in this process. There are at most as many as the source has
            virtual shards.
        source: the input. The workers start with the first batch and continue from its position.
            With workers, the position of `source` itself does not change.
    """
    if not workers:
        yield source
        return
    pool = _Pool(source, workers)
    try:
        yield pool
    finally:
        pool.close()


class _Packed(NamedTuple):
    """What a worker sends for each batch.

    Attributes:
        rows: its rows; see `TrainInput.next_rows`.
        position: the state of its virtual shards after the batch.
        skipped: number of examples that it left out so far.
    """

    rows: NestedMap
    position: InputPosition
    skipped: int


class _Pool:
    """The workers of one input; see `Batches`."""

    def __init__(self, source: TrainInput, count: int):
        self._source, self._parts = source, source.part.split(count)
        self._workers: list[_Worker] = []
        self._packed: list[_Packed] = []  # of the last batch

    @property
    def skipped(self) -> int:
        """Number of drawn examples that were longer than a row."""
        return sum(packed.skipped for packed in self._packed)

    def next_batch(self) -> NestedMap:
        """The next batch; errors are those of `TrainInput.next_batch`.

        Raises:
            OSError: a worker has ended.
        """
        if not self._workers:
            self._start()
        self._packed = [worker.packed() for worker in self._workers]
        return self._source.part.batch([packed.rows for packed in self._packed])

    def state(self) -> dict[str, Any]:
        """The state after the last batch; see `TrainInput.state`."""
        if not self._packed:
            return self._source.state()
        shards = {v: s for packed in self._packed for v, s in packed.position.shards.items()}
        position = InputPosition(self._packed[0].position.batches, shards)
        return self._source.part.state(position)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state; only before the first batch."""
        self._source.restore(state)

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            worker.close()

    def _start(self):
        for number in range(1, len(self._parts) + 1):
            self._workers.append(_Worker(f"{number} of {len(self._parts)}"))
        position = self._source.position()
        for worker, part in zip(self._workers, self._parts, strict=True):
            worker.begin(self._source, part, position)


class _Worker:
    """A process that packs without end. When it is ahead, its pipe is full, and it waits."""

    def __init__(self, name: str):
        self._name = name
        self._process = child.start(__name__, stdout=subprocess.PIPE)

    def begin(self, source: TrainInput, part: Part, position: InputPosition) -> None:
        """Sends the arguments of its TrainInput, which packs this part, and where to begin."""
        without_caches = dataclasses.replace(source.dataset)
        arguments = without_caches, source.params, source.seed, part
        child.send(self._process, (arguments, position))

    def packed(self) -> _Packed:
        """What it packed for the next batch; an error of the worker is raised here."""
        assert self._process.stdout
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._death() from error
        if isinstance(answer, BaseException):
            raise answer
        return _Packed(*answer)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError), self._process:
            self._process.kill()

    def _death(self):
        status = self._process.wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else ""
        return OSError(
            f"Input worker {self._name} (process {self._process.pid}) "
            f"{how or f'ended with exit status {status}'}. Training needs all of its input "
            f"workers. The same command resumes; if the host's memory was exhausted, use fewer "
            f"(--input_workers)."
        )


def _main() -> None:
    """A worker."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a modifier prints must not get into the pipe
    try:
        arguments, position = child.receive()
        source = TrainInput(*arguments)
        source.go_to(position)
        while True:
            rows = source.next_rows()
            _send(pipe, (rows, source.position(), source.skipped))
    except BaseException as error:
        _send(pipe, _picklable(error))


def _send(pipe, message):
    try:
        pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
        pipe.flush()
    except BrokenPipeError:
        os._exit(child.PARENT_ENDED)


def _picklable(error: BaseException) -> BaseException:
    """The error with its traceback as a note, which `--debug` shows."""
    error.add_note(f"In an input worker:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    _main()
