"""Plain processes, without JAX: each runs this file as a script, and one of them fails."""

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lingvo_moe.runtimes import together
from lingvo_moe.runtimes.together import end_together, start_together
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
            assert errors.endswith("ValueError: no room on the disk\n")
            assert errors.count("Traceback") == 1  # this script lets Python print it
        else:
            assert errors == f"error: {name(processes, failing)}: no room on the disk\n"


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


def test_ctrl_c_in_one_ends_all(tmp_path):
    processes = start(tmp_path, ["busy", "interrupted", "busy"])
    results = finish(processes)
    assert [code for code, *_ in results] == [1, 130, 1]
    for _, _, errors in results[::2]:
        assert errors == f"error: {name(processes, 1)}: KeyboardInterrupt\n"


def test_a_signal_that_stopped_all_is_no_failure(tmp_path):
    """Each ends with the status of the signal, and without a message."""
    results = finish(start(tmp_path, ["stopped"] * COUNT))
    assert results == [(128 + signal.SIGTERM, "", "")] * COUNT


def test_one_that_fails_while_others_wait_at_the_end(tmp_path):
    processes = start(tmp_path, ["end", "end", "fail late"])
    results = finish(processes)
    assert [code for code, *_ in results] == [1] * COUNT
    for _, _, errors in results[:2]:
        assert errors == f"error: {name(processes, 2)}: no room on the disk\n"


@pytest.mark.parametrize(
    ("roles", "code", "message"),
    [
        (["busy", "die", "busy"], 1, r"^error: process 1 \(pid \d+ on .*\) ended without an error"),
        (["die", "busy", "busy"], -signal.SIGKILL, "^error: process 0 .* ended without an error"),
        (["slow", "end", "end"], 0, "^$"),
    ],
)
def test_the_first_may_start_the_others(tmp_path, roles, code, message):
    """What all of them write ends with the last of them, so none outlives the call."""
    command = [sys.executable, __file__, str(tmp_path), "0", *roles]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert re.search(message, done.stderr, re.MULTILINE)
    assert done.stdout.count("\n") == (0 if code else COUNT)


def test_one_that_ends_before_it_connects(tmp_path):
    """The first, which started it, does not wait for it."""
    command = [sys.executable, __file__, str(tmp_path), "0", "end", "gone", "end"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 1
    assert "OSError: Process 1 ended at its start, with exit status 7" in errors


def test_strangers_are_turned_away(tmp_path):
    first = start(tmp_path, ["end"])
    port = int(read(tmp_path).split()[0])
    silent = socket.create_connection(("localhost", port))
    for words in (b"GET / HTTP/1.0\r\n\r\n", b'{"index": 1, "token": "guess"}\n', b"7\n"):
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
    """What process 0 has published."""
    path = Path(directory) / "address"
    wait_until(path.exists, f"{path} exists", seconds=120)
    return path.read_text()


def main(directory, index, *roles):
    """One process with its role; or with those of all, where the first starts the others."""
    together.HELLO_SECONDS = 0.5

    def exchange(text):
        if text is not None:
            (Path(directory) / "partial").write_text(text)
            os.rename(Path(directory) / "partial", Path(directory) / "address")
        return read(directory)

    def command(other):
        return [sys.executable, __file__, directory, str(other), *roles]

    if roles[int(index) % len(roles)] == "gone":
        sys.exit(7)
    if len(roles) == 1:
        group, [role] = end_together(int(index), COUNT, "localhost", exchange), roles
    else:
        group, role = start_together(int(index), COUNT, command), roles[int(index)]
    with group:
        if role in ("slow", "fail late"):
            time.sleep(0.5)
            (Path(directory) / "slow").write_text(repr(time.time()))
        if role.startswith("fail"):
            raise ValueError("no room on the disk")
        if role == "interrupted":
            signal.raise_signal(signal.SIGINT)
        if role == "stopped":
            raise Stopped(signal.SIGTERM)
        if role == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if role == "busy":
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
    print(time.time())


if __name__ == "__main__":
    main(*sys.argv[1:])
