"""Connects several processes, on one host or many, that run one program together."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # its key-value store has no public name
from jax.experimental import multihost_utils

from lingvo_moe.runtimes.together import Member, end_together, gather, join, listen
from lingvo_moe.training.process import ALONE, Process

AUTO = "auto"
_SILENCE_SECONDS = 30
_MEET_SECONDS = 300
_MOST_MILLISECONDS = 7 * 24 * 3600 * 1000
_PORT, _TEXTS = (f"lingvo_moe/{name}" for name in ("port", "texts"))


@contextlib.contextmanager
def join_processes(
    coordinator: str | None = None, index: int | None = None, count: int | None = None
) -> Iterator[Process]:
    """Connects to the other processes; all end together, see `end_together`.

    Use it once, before JAX lists devices. If a host loses its network, JAX ends all processes
    after about 30 s; other failures end them within two seconds.

    Args:
        coordinator: HOST:PORT of process 0; "auto" to read it from the cluster (a TPU pod, SLURM,
            Open MPI, Kubernetes); None to do so in the environment of several SLURM tasks or TPU
            workers, and to run a single process elsewhere.
        index: the number of this process; None to read it from the cluster.
        count: the number of processes; None to read it from the cluster.

    Yields:
        This process, with a function to wait for all.

    Raises:
        ValueError: an argument is missing or wrong.
        OSError: the address cannot be used, other processes do not connect, or their index or
            count does not fit.
    """
    _check(coordinator, index, count)
    if coordinator is None and not _in_a_cluster():
        yield ALONE
        return
    met = distributed.global_state
    where = "the cluster's address" if coordinator in (None, AUTO) else coordinator
    print(f"Waiting for the other processes at {where} …", file=sys.stderr, flush=True)
    if coordinator in (None, AUTO):
        _initialize()
        number, members = met.process_id, _meet_in_a_cluster(met)
    else:
        number, members = index or 0, _meet(coordinator, index, count)
    with end_together(number, members):
        if met.client is None:
            _initialize(coordinator, index, count)
        exchange = TextExchange(met.client, met.process_id)
        yield Process(met.process_id, _minimum, exchange)


def _meet(coordinator, index, count) -> list[Member]:
    """The other processes, before JAX connects them: it would abort if some are missing."""
    host, _, port = coordinator.rpartition(":")
    if index:
        return join((host.strip("[]"), int(port)), index, count, _MEET_SECONDS)
    return gather(listen(int(port), count), count, _MEET_SECONDS)


def _meet_in_a_cluster(met) -> list[Member]:
    """The other processes, which JAX has connected; process 0 listens at a free port."""
    index, count = met.process_id, met.num_processes
    if index == 0:
        server = listen(0, count)
        met.client.key_value_set(_PORT, str(server.getsockname()[1]))
        return gather(server, count, _MEET_SECONDS)
    host = met.coordinator_address.rpartition(":")[0].strip("[]")
    port = met.client.blocking_key_value_get(_PORT, 1000 * _MEET_SECONDS)
    return join((host, int(port)), index, count, _MEET_SECONDS)


def _initialize(coordinator=None, index=None, count=None):
    """Connects JAX; it reads from the cluster what is not given."""
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            initialization_timeout=_MEET_SECONDS,
            heartbeat_timeout_seconds=_SILENCE_SECONDS,
        )
    except ValueError as error:
        if "coordinator_address should be" not in str(error):
            raise
        raise ValueError(
            "--coordinator=auto finds no cluster here (Slurm, Open MPI, a TPU pod, or Kubernetes "
            "with the Python package kubernetes); give --coordinator=HOST:PORT, --process_index "
            "and --process_count."
        ) from error
    if _has_all_gpus() and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
            jax.config.update(name, "all")


def _has_all_gpus() -> bool:
    """Whether a Slurm task uses every GPU that it sees. JAX gives each task of a node one of them.

    So it is if the task is alone on its node, or if Slurm divides the GPUs.
    """
    tasks, nodes = (os.environ.get(f"SLURM_STEP_NUM_{name}") for name in ("TASKS", "NODES"))
    return tasks == nodes is not None or "SLURM_GPUS_PER_TASK" in os.environ


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
            "reads all three from the cluster."
        )
    if not 0 <= index < count:
        raise ValueError(
            f"--process_index must be from 0 to {count - 1} with --process_count={count}, got "
            f"{index}."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--coordinator must be HOST:PORT or auto, got {coordinator!r}.")


def _in_a_cluster() -> bool:
    # The other variables are those of a task. A shell of salloc has only the number of tasks.
    task = all(name in os.environ for name in ("SLURM_PROCID", "SLURM_STEP_NODELIST"))
    several = os.environ.get("SLURM_NTASKS", "1") not in ("", "1")
    return (task and several) or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")


class TextExchange:
    """Gives each process the texts of all, by JAX's key-value store, without the devices.

    A thread may use it while another runs programs. Collectives of two threads could start in
    another order in each process, and then wait for each other forever.
    """

    def __init__(self, client: Any, index: int):
        """client: of JAX's distributed runtime; index: of this process."""
        self._client, self._index = client, index
        self._round = 0

    def __call__(self, text: str) -> list[str]:
        """Waits for the same call in every process; returns their texts, by index."""
        self._round += 1
        key = f"{_TEXTS}/{self._round}"
        self._client.key_value_set(f"{key}/{self._index}", text)
        # The limit is longer than any write of a checkpoint. If a process fails, all end.
        self._client.wait_at_barrier(key, _MOST_MILLISECONDS)
        texts = {int(name.rpartition("/")[2]): t for name, t in self._client.key_value_dir_get(key)}
        # Every process is in this round, so it has read the texts of the round before.
        if self._index == 0 and self._round > 1:
            self._client.key_value_delete(f"{_TEXTS}/{self._round - 1}")
        return [texts[index] for index in sorted(texts)]


def _minimum(value: int) -> int:
    return int(np.min(multihost_utils.process_allgather(np.int32(value))))
