import socket
import subprocess
import sys

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
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    lonely = [
        subprocess.Popen(
            [sys.executable, "-c", LONELY, address, str(i)], env=environment(1), **pipes
        )
        for i, address in enumerate(addresses)
    ]
    for process, address in zip(lonely, addresses, strict=True):
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, out) == (1, "")
        assert errors.splitlines()[-1].startswith(
            f"error: Not all processes connected to {address} within 2 s. Start all of them"
        )


MEETING = """
import sys
from lingvo_moe.runtimes import processes
with processes.join_processes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) as process:
    print(process.share(f"of {process.index}"), process.background.minimum(5 + process.index))
    assert process.cause(None) == "another process failed, see its log"
    assert process.cause(OSError("full") if process.index else None).endswith("full")
"""


def test_another_number_of_processes():
    """Both end at once, with the cause."""
    cause = "--process_count=3 in process 1, and 2 in process 0; give all processes the same."
    for code, out, errors in _meet(2, 3):
        assert (code, out) == (1, "")
        assert cause in errors


def test_texts_and_numbers_of_all():
    for code, out, errors in _meet(2, 2):
        assert (code, out) == (0, "['of 0', 'of 1'] 5\n"), errors


def _meet(*counts):
    """(exit code, output, errors) of processes, each with the number of processes given to it."""
    address = free_address()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING, address, str(i), str(count)],
            env=environment(1),
            **pipes,
        )
        for i, count in enumerate(counts)
    ]
    ended = [process.communicate(timeout=120) for process in started]
    return [(p.returncode, *texts) for p, texts in zip(started, ended, strict=True)]


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


def test_a_port_that_is_taken():
    pytest.importorskip("jax")
    from lingvo_moe.runtimes.processes import join_processes

    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        message = rf"Port {port} of this host cannot be used \(Address already in use\); give anoth"
        with pytest.raises(OSError, match=message), join_processes(f"localhost:{port}", 0, 2):
            pass
