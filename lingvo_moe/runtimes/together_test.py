"""Plain processes, without JAX: each runs this file as a script, and one of them fails."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lingvo_moe.runtimes import together
from lingvo_moe.testing.waiting import wait_until
from lingvo_moe.training.signals import Stopped

COUNT = 3


def start(directory, roles):
    """Processes that connect through a file in the directory and then run their roles."""
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(directory), str(index), role],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, role in enumerate(roles)
    ]


def finish(processes, seconds=120):
    """[(exit code, stdout, stderr), …] of processes that all end in time."""
    try:
        done = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *texts) for p, texts in zip(processes, done, strict=True)]


def name(processes, index):
    return f"process {index} (pid {processes[index].pid} on {socket.gethostname()})"


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_in_one_ends_all_with_its_cause(tmp_path, failing):
    """The others are in native code, as in a collective that waits for a missing process."""
    roles = ["busy"] * COUNT
    roles[failing] = "fail"
    processes = start(tmp_path, roles)
    results = finish(processes)
    assert [code for code, *_ in results] == [1] * COUNT
    for index, (_, _, errors) in enumerate(results):
        if index == failing:
            assert "ValueError: no room on the disk" in errors
            assert errors.count("Traceback") == 1  # this script lets Python print it
        else:
            assert errors.startswith(f"error: {name(processes, failing)}: no room on the disk …")


@pytest.mark.parametrize("dying", [0, 2])
def test_one_that_is_killed_is_noticed(tmp_path, dying):
    roles = ["busy"] * COUNT
    roles[dying] = "die"
    processes = start(tmp_path, roles)
    results = finish(processes)
    for index, (code, _, errors) in enumerate(results):
        if index == dying:
            assert (code, errors) == (-signal.SIGKILL, "")
        else:
            cause = f"{name(processes, dying)} ended without an error message; see its own output"
            assert (code, errors) == (1, f"error: {cause}\n")


def test_the_fast_wait_for_the_slow(tmp_path):
    """Process 2 takes half a second longer; no other ends before it is done."""
    results = finish(start(tmp_path, ["end", "end", "slow"]))
    assert [(code, errors) for code, _, errors in results] == [(0, "")] * COUNT
    ends = [float(out) for _, out, _ in results]
    assert (tmp_path / "slow").exists()
    assert min(ends[:2]) >= float((tmp_path / "slow").read_text())


def test_a_signal_that_stopped_all_is_no_failure(tmp_path):
    """Each ends with the status of the signal, and without a message."""
    results = finish(start(tmp_path, ["stopped"] * COUNT))
    assert results == [(128 + signal.SIGTERM, "", "")] * COUNT


def test_one_that_fails_while_others_wait_at_the_end(tmp_path):
    processes = start(tmp_path, ["end", "end", "fail late"])
    results = finish(processes)
    assert [code for code, *_ in results] == [1] * COUNT
    for _, _, errors in results[:2]:
        assert errors.startswith(f"error: {name(processes, 2)}: no room on the disk …")


def test_strangers_are_turned_away(tmp_path):
    first = start(tmp_path, ["end"])
    port = int(read(tmp_path))
    silent = socket.create_connection(("localhost", port))
    for words in (b"GET / HTTP/1.0\r\n\r\n", b'{"index": 1}\n', b"7\n"):
        with socket.create_connection(("localhost", port)) as stranger:
            stranger.sendall(words)
            assert stranger.recv(100) == b""
    others = [
        subprocess.Popen([sys.executable, __file__, str(tmp_path), str(index), "end"])
        for index in (1, 2)
    ]
    assert [code for code, *_ in finish(first + others)] == [0] * COUNT
    silent.close()


def read(directory):
    """The port of process 0."""
    path = Path(directory) / "port"
    wait_until(path.exists, f"{path} exists", seconds=120)
    return path.read_text()


def main(directory, index, role):
    """One process with its role."""
    together.HELLO_SECONDS = 0.5
    if index == "0":
        server = together.listen(0, COUNT)
        (Path(directory) / "partial").write_text(str(server.getsockname()[1]))
        os.rename(Path(directory) / "partial", Path(directory) / "port")
        members = together.gather(server, COUNT, 120)
    else:
        members = together.join(("localhost", int(read(directory))), int(index), COUNT, 120)
    with together.end_together(int(index), members):
        if role in ("slow", "fail late"):
            time.sleep(0.5)
            (Path(directory) / "slow").write_text(repr(time.time()))
        if role.startswith("fail"):
            raise ValueError("no room on the disk" + " …" * 1000)
        if role == "stopped":
            raise Stopped(signal.SIGTERM)
        if role == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if role == "busy":
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
    print(time.time())


if __name__ == "__main__":
    main(*sys.argv[1:])
