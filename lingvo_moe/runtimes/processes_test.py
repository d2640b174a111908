import socket
import subprocess
import sys

import pytest

from lingvo_moe.testing.devices import environment

LONELY = """
import sys
from lingvo_moe.runtimes import processes
processes._MEET_SECONDS = 2
with processes.joined(sys.argv[1], int(sys.argv[2]), 2):
    print("met")
"""


@pytest.mark.parametrize("index", [0, 1])
def test_others_that_never_come(index):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-c", LONELY, address, str(index)],
        env=environment(1),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        f"error: Not all processes connected to {address} within 2 s. Start all of them with"
    )


def test_a_port_that_is_taken():
    pytest.importorskip("jax")
    from lingvo_moe.runtimes.processes import joined

    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        message = rf"Port {port} of this host cannot be used \(Address already in use\); give anoth"
        with pytest.raises(OSError, match=message), joined(f"localhost:{port}", 0, 2):
            pass
