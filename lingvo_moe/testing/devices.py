"""Runs tests on virtual devices in separate processes, as JAX reads their number only once."""

import json
import os
import socket
from typing import Any

import pytest

from lingvo_moe.testing.forks import Fork


def variables(devices: int) -> dict[str, str]:
    """Environment variables for this number of CPU devices; skips the test without JAX."""
    pytest.importorskip("jax")
    # Programs that run once are not worth optimizing.
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def environment(devices: int) -> dict[str, str]:
    """This process's environment with `variables`."""
    return os.environ | variables(devices)


def free_address() -> str:
    """HOST:PORT at which processes can meet."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


def run_on(devices: int, script: str, *arguments: str) -> Any:
    """Runs a test file as a script on this number of devices.

    Returns:
        The JSON in the last line that it prints.
    """
    done = Fork(script, *arguments, variables=variables(devices)).wait()
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
