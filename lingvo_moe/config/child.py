"""Child processes: each runs a module, and ends when the process that started it ends."""

import contextlib
import io
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from typing import Any

from lingvo_moe.config.plugins import import_plugins, imported

PARENT_ENDED = 3  # exit status of a child whose parent has ended or has closed the pipe
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def environment() -> dict[str, str]:
    """The environment for a child that imports from the same places as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(module: str, *arguments: str, **streams: Any) -> subprocess.Popen:
    """Starts `python -m module *arguments`; the module must call `receive` to get what `send`
    sends. `streams` are stdout and stderr, as for subprocess.Popen.

    SIGINT, SIGTERM and SIGHUP do not reach the child. Terminals and clusters send them to all
    processes of a job, but only the parent should handle them. Raises OSError: no process can
    start.
    """
    # A child inherits the signal mask of the thread that starts it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: not the current directory
            stdin=subprocess.PIPE,
            env=environment(),
            **streams,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def send(process: subprocess.Popen, value: Any) -> None:
    """Sends a value, which must be picklable, to a child; a child that has ended is ignored."""
    assert process.stdin
    try:
        pickle.dump(imported(), process.stdin)
        pickle.dump(value, process.stdin)
        process.stdin.flush()
    except BrokenPipeError:  # what is not sent must not be tried again when the pipe is closed
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def receive() -> Any:
    """In the child: imports the parent's plug-ins, and returns the value that it has sent.

    From now on the child ends when the other end of the pipe is closed.

    Raises ValueError: as `import_plugins`; Exception: a class of the value cannot be imported.
    """
    stream = io.BufferedReader(io.FileIO(0, closefd=False))
    try:
        import_plugins(pickle.load(stream))
        value = pickle.load(stream)
    except (EOFError, pickle.UnpicklingError):
        os._exit(PARENT_ENDED)
    if select.select([stream], [], [], 0)[0]:  # the parent has already ended
        os._exit(PARENT_ENDED)
    threading.Thread(target=_end_with_parent, args=(stream,), daemon=True).start()
    return value


def _end_with_parent(stream):
    stream.read()  # until the other end of the pipe is closed
    os._exit(PARENT_ENDED)
