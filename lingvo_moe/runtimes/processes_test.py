import socket
import subprocess
import sys
import time

import pytest

from lingvo_moe.testing.devices import environment, free_address

LONELY = """
import sys
from lingvo_moe.runtimes import processes
processes._MEET_SECONDS = 2
with processes.join_processes(sys.argv[1], int(sys.argv[2]), 2):
    print("met")
"""


def test_others_that_never_come():
    """Neither for the first process nor for another."""
    addresses = free_address(), free_address()
    lonely = [_start(LONELY, address, str(i)) for i, address in enumerate(addresses)]
    reasons = ("missing: 1", "process 0: Connection refused")
    for process, reason in zip(lonely, reasons, strict=True):
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out) == (1, "")
        assert f"Not all processes connected within 2 s ({reason}). Start all" in errors


MEETING = """
import sys
from lingvo_moe.runtimes import processes
with processes.join_processes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) as process:
    print(process.share(f"of {process.index}"), process.background.minimum(5 + process.index))
    assert process.cause(None) == "another process failed, see its log"
    assert process.cause(OSError("full") if process.index else None).endswith("full")
"""


@pytest.mark.parametrize(
    ("processes", "cause"),
    [
        (((0, 2), (1, 3)), "--process_count=3 in process 1"),
        (((0, 3), (1, 3), (1, 3)), "Two processes have --process_index=1"),
    ],
)
def test_flags_that_do_not_fit_end_all_with_the_cause(processes, cause):
    """JAX would abort one and let the others wait."""
    for code, out, errors in _meet(*processes):
        assert (code, out) == (1, "")
        assert cause in errors


def test_texts_and_numbers_of_all():
    for code, out, errors in _meet((0, 2), (1, 2)):
        assert (code, out) == (0, "['of 0', 'of 1'] 5\n"), errors


def test_a_process_that_starts_again_and_others_that_connect():
    """The first process 1 ends before all are here; a port scan is no process."""
    address = free_address()
    host, port = address.split(":")
    first = _start(MEETING, address, "0", "3")
    stopped = _start(MEETING, address, "1", "3")
    with _connection(host, int(port)) as scan:
        scan.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert stopped.stderr.readline().startswith("Waiting for the other processes")
        time.sleep(0.5)  # until it has reported
        stopped.kill()
        stopped.communicate()
        others = [_start(MEETING, address, str(i), "3") for i in (1, 2)]
        for process in [first, *others]:
            out, errors = process.communicate(timeout=120)
            assert (process.returncode, out) == (0, "['of 0', 'of 1', 'of 2'] 5\n"), errors


def _connection(host, port):
    """To a process that begins to listen."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.1)


def _meet(*processes):
    """(exit code, output, errors) of processes with these indexes and counts."""
    address = free_address()
    started = [_start(MEETING, address, str(i), str(count)) for i, count in processes]
    ended = [process.communicate(timeout=120) for process in started]
    return [(p.returncode, *texts) for p, texts in zip(started, ended, strict=True)]


def _start(program, *arguments):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=environment(1), **pipes
    )


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({}, False),
        ({"SLURM_NTASKS": ""}, False),
        ({"SLURM_NTASKS": "2"}, False),  # a shell of salloc
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
    ],
)
def test_where_a_process_expects_others(variables, several, monkeypatch):
    pytest.importorskip("jax")
    from lingvo_moe.runtimes import processes

    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
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
    ("variables", "visible"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, "all"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, "0"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_GPUS_PER_TASK": "4"}, "all"),
    ],
)
def test_a_slurm_task_sees_the_gpus_that_are_its_own(variables, visible, monkeypatch):
    pytest.importorskip("jax")
    task = {
        "JOB_ID": "1",
        "STEP_NODELIST": "localhost",
        "NTASKS": "2",
        "PROCID": "0",
        "LOCALID": "0",
    }
    for name, value in ({f"SLURM_{n}": task[n] for n in task} | variables).items():
        monkeypatch.setenv(name, value)
    address = free_address()
    started = [_start(SLURM_PROGRAM, address, str(i)) for i in range(2)]
    for process in started:
        output, errors = process.communicate(timeout=120)
        assert output.split() == [visible], errors


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
