"""Several processes, on one host or many, that run one program together."""

import os

import jax
import numpy as np
from jax.experimental import multihost_utils

from lingvo_moe.train.checkpoint import ALONE, Process

AUTO = "auto"


def join(
    coordinator: str | None = None, index: int | None = None, count: int | None = None
) -> Process:
    """Meets the other processes; to be called once, before anything asks for devices.

    Args:
        coordinator: HOST:PORT of process 0; "auto" to ask the cluster (a TPU pod, SLURM, Open MPI,
            Kubernetes); None to do so where the environment is that of several SLURM tasks or TPU
            workers, and else to stay alone.
        index: which process this is; None to ask the cluster.
        count: how many there are; None to ask the cluster.

    Returns:
        Which of the processes this is, with a way to wait for all of them.

    Raises:
        ValueError: part of what is needed is missing.
    """
    if coordinator is None and (index is not None or count is not None):
        raise ValueError(
            "--process_index and --process_count need --coordinator=HOST:PORT, the address of "
            "process 0."
        )
    if coordinator is None and not _in_a_cluster():
        return ALONE
    if coordinator in (None, AUTO):
        jax.distributed.initialize()
    elif index is None or count is None:
        raise ValueError(
            "--coordinator=HOST:PORT needs --process_index and --process_count; --coordinator=auto "
            "asks the cluster for all three."
        )
    else:
        jax.distributed.initialize(coordinator, count, index)
    return Process(jax.process_index(), _minimum)


def _in_a_cluster() -> bool:
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    return tasks > 1 or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")


def _minimum(value: int) -> int:
    return int(np.min(multihost_utils.process_allgather(np.int32(value))))
