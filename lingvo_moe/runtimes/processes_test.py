import socket
import time

import pytest

from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork, wait_for_all
from lingvo_moe.testing.waiting import wait_until

LONELY = """
import sys
from lingvo_moe.runtimes import processes
processes._MEET_SECONDS = 2
with processes.join_processes(sys.argv[1], int(sys.argv[2]), 2):
    print("met")
"""


@pytest.fixture
def start(tmp_path):
    """Starts a program as a process with one device."""

    def run(program, *arguments, **more):
        path = tmp_path / "program.py"
        if not path.exists():  # others may be reading it
            path.write_text(program)
        return Fork(str(path), *map(str, arguments), variables=variables(1) | more)

    return run


def test_others_that_never_come(start):
    """Neither for the first process nor for another."""
    lonely = [start(LONELY, free_address(), index) for index in (0, 1)]
    reasons = ("missing: 1", "process 0: Connection refused")
    for done, reason in zip(wait_for_all(lonely), reasons, strict=True):
        assert (done.returncode, done.stdout) == (1, "")
        assert f"Not all processes connected within 2 s ({reason}). Start all" in done.stderr


MEETING = """
import sys
from lingvo_moe.runtimes import processes
with processes.join_processes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) as process:
    print(process.share(f"of {process.index}"), process.background.minimum(5 + process.index))
    assert process.cause(None) == "another process failed, see its log"
    assert process.cause(OSError("full") if process.index else None).endswith("full")
"""


@pytest.fixture
def meet(start):
    """Runs processes with these indexes and counts."""

    def run(*processes):
        address = free_address()
        return wait_for_all([start(MEETING, address, *both) for both in processes])

    return run


@pytest.mark.parametrize(
    ("processes", "cause"),
    [
        (((0, 2), (1, 3)), "--process_count=3 in process 1"),
        (((0, 3), (1, 3), (1, 3)), "Two processes have --process_index=1"),
    ],
)
def test_flags_that_do_not_fit_end_all_with_the_cause(meet, processes, cause):
    """JAX would abort one and let the others wait."""
    for done in meet(*processes):
        assert (done.returncode, done.stdout) == (1, "")
        assert cause in done.stderr


def test_texts_and_numbers_of_all(meet):
    for done in meet((0, 2), (1, 2)):
        assert (done.returncode, done.stdout) == (0, "['of 0', 'of 1'] 5\n"), done.stderr


def test_a_process_that_starts_again_and_others_that_connect(start):
    """The first process 1 ends before all are here; a port scan is no process."""
    address = free_address()
    host, port = address.split(":")
    first, stopped = (start(MEETING, address, index, 3) for index in (0, 1))
    with _connection(host, int(port)) as scan:
        scan.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_until(lambda: "Waiting for the other processes" in stopped.errors(), "it waits")
        time.sleep(0.5)  # until it has reported
        stopped.kill()
        stopped.wait()  # until its connection is closed
        others = [start(MEETING, address, index, 3) for index in (1, 2)]
        for done in wait_for_all([first, *others]):
            assert (done.returncode, done.stdout) == (0, "['of 0', 'of 1', 'of 2'] 5\n"), (
                done.stderr
            )


def _connection(host, port):
    """To a process that begins to listen."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("given", "several"),
    [
        ({}, False),
        ({"SLURM_NTASKS": ""}, False),
        ({"SLURM_NTASKS": "2"}, False),  # a shell of salloc
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
    ],
)
def test_where_a_process_expects_others(given, several, monkeypatch):
    pytest.importorskip("jax")
    from lingvo_moe.runtimes import processes

    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert processes._in_a_cluster() == several


SLURM_PROGRAM = """
import sys
import jax
from lingvo_moe.runtimes.processes import join_processes
with join_processes(sys.argv[1], int(sys.argv[2]), 2):
    print(jax.config._read("jax_cuda_visible_devices"))
"""


@pytest.mark.parametrize(
    ("step", "visible"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, "all"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, "0"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_GPUS_PER_TASK": "4"}, "all"),
    ],
)
def test_a_slurm_task_sees_the_gpus_that_are_its_own(start, step, visible):
    task = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "PROCID": "0"}
    given = {f"SLURM_{name}": value for name, value in (task | {"LOCALID": "0"}).items()} | step
    address = free_address()
    started = [start(SLURM_PROGRAM, address, index, **given) for index in range(2)]
    for done in wait_for_all(started):
        assert done.stdout.split() == [visible], done.stderr


def test_a_cluster_that_is_not_there():
    pytest.importorskip("jax")
    from lingvo_moe.runtimes.processes import join_processes

    with (
        pytest.raises(ValueError, match=r"auto finds no cluster.*HOST:PORT"),
        join_processes("auto"),
    ):
        pass


def test_a_port_that_is_taken():
    pytest.importorskip("jax")
    from lingvo_moe.runtimes.processes import join_processes

    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        message = rf"Port {port} of this host cannot be used \(Address already in use\); start all"
        with pytest.raises(OSError, match=message), join_processes(f"localhost:{port}", 0, 2):
            pass
