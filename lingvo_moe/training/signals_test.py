import signal
import subprocess
import sys
import time

import pytest

from lingvo_moe.training import signals

# Hashing instead of a compiler: native code that never returns to the interpreter.
BUSY = """
import hashlib
from lingvo_moe.training import signals
signals._TOGETHER_SECONDS = 0.5
with signals.deferred():
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_answered_at_once_in_native_code_and_the_second_ends_at_once(number, code):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as process:
        try:
            assert process.stdout.readline() == "busy\n"
            process.send_signal(number)
            line = process.stderr.readline()
            assert line.startswith(f"{number.name}: saving after the current step or evaluation")
            process.send_signal(number)  # as GNU timeout does: to the process and to its group
            time.sleep(0.6)
            process.send_signal(number)
            assert process.stderr.read() == f"{number.name} again: ending now, without saving.\n"
            assert process.wait() == code
        finally:
            process.kill()


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals.deferred() as received:
        signal.raise_signal(signal.SIGTERM)
        assert received() == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_after_nohup_a_terminal_may_go(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.deferred() as received:
            signal.raise_signal(signal.SIGHUP)
            assert received() is None
    finally:
        signal.signal(signal.SIGHUP, before)
