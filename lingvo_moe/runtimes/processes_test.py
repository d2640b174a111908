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


def test_a_port_that_is_taken():
    pytest.importorskip("jax")
    from lingvo_moe.runtimes.processes import join_processes

    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        message = rf"Port {port} of this host cannot be used \(Address already in use\); give anoth"
        with pytest.raises(OSError, match=message), join_processes(f"localhost:{port}", 0, 2):
            pass
