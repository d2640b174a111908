"""Several processes, on one host or many, that run one program together."""

import contextlib
import os
import sys
from collections.abc import Iterator

import jax
import numpy as np
from jax._src import (
    distributed,
)  # as other libraries do: JAX's own key-value store has no other way
from jax.experimental import multihost_utils

from lingvo_moe.runtimes.together import end_together
from lingvo_moe.train.checkpoint import ALONE, Process

AUTO = "auto"
_SILENCE_SECONDS = 30
_MEET_MILLISECONDS = 60_000
_KEY = "lingvo_moe/end_together"


@contextlib.contextmanager
def joined(
    coordinator: str | None = None, index: int | None = None, count: int | None = None
) -> Iterator[Process]:
    """Meets the other processes, which then end together; see `end_together`.

    To be entered once, before anything asks for devices. A host that is lost with its network is
    noticed by JAX, which ends all processes after some 30 s; anything else within a second or two.

    Args:
        coordinator: HOST:PORT of process 0; "auto" to ask the cluster (a TPU pod, SLURM, Open MPI,
            Kubernetes); None to do so where the environment is that of several SLURM tasks or TPU
            workers, and else to stay alone.
        index: which process this is; None to ask the cluster.
        count: how many there are; None to ask the cluster.

    Yields:
        Which of the processes this is, with a way to wait for all of them.

    Raises:
        ValueError: part of what is needed is missing or wrong.
        OSError: the processes do not meet.
    """
    _check(coordinator, index, count)
    if coordinator is None and not _in_a_cluster():
        yield ALONE
        return
    where = None if coordinator == AUTO else coordinator
    print(f"Meeting the other processes at {where or 'the cluster'} …", file=sys.stderr, flush=True)
    try:
        jax.distributed.initialize(where, count, index, heartbeat_timeout_seconds=_SILENCE_SECONDS)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise OSError(
            f"The processes did not meet at {where or 'the cluster'}: {reason}"
        ) from error
    index, count = jax.process_index(), jax.process_count()
    host = distributed.global_state.coordinator_address.rpartition(":")[0].strip("[]")
    with end_together(index, count, host, _exchange):
        yield Process(index, _minimum)


def _check(coordinator, index, count):
    if coordinator is None and (index is not None or count is not None):
        raise ValueError(
            "--process_index and --process_count need --coordinator=HOST:PORT, the address of "
            "process 0."
        )
    if coordinator in (None, AUTO):
        return
    if index is None or count is None:
        raise ValueError(
            "--coordinator=HOST:PORT needs --process_index and --process_count; --coordinator=auto "
            "asks the cluster for all three."
        )
    if not 0 <= index < count:
        raise ValueError(
            f"--process_index must be from 0 to {count - 1} with --process_count={count}, got "
            f"{index}."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--coordinator must be HOST:PORT or auto, got {coordinator!r}.")


def _exchange(text: str | None) -> str:
    """Passes a text of process 0's to all."""
    client = distributed.global_state.client
    if text is not None:
        client.key_value_set(_KEY, text)
    try:
        return client.blocking_key_value_get(_KEY, _MEET_MILLISECONDS)
    except RuntimeError as error:
        raise OSError(f"Process 0 does not answer: {error}") from error


def _in_a_cluster() -> bool:
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    return tasks > 1 or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")


def _minimum(value: int) -> int:
    return int(np.min(multihost_utils.process_allgather(np.int32(value))))
