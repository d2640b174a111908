"""Processes of tests, forked from one that has imported TensorFlow, which saves five seconds."""

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

SECONDS = 1200  # timeout of a process

# Modules here must not initialize TensorFlow's devices, because a fork does not have their threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow_text", "lingvo_moe.jobs.training"])


class Fork:
    """A module, or a file whose path ends in ".py", run as the main program of a new process.

    Args:
        program: the module or file.
        arguments: its arguments, after its name.
        stdin: what it reads.
        variables: of its environment, in addition to those of the first fork.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        stdin: str = "",
        variables: Mapping[str, str] = types.MappingProxyType({}),
    ):
        self._directory = tempfile.TemporaryDirectory()
        self._streams = [Path(self._directory.name, name) for name in ("stdin", "out", "err")]
        self._streams[0].write_text(stdin)
        self._command = [program, *arguments]
        given = (self._command, self._streams, dict(variables))
        self._process = _CONTEXT.Process(target=_main, args=given)
        self._process.start()

    def kill(self) -> None:
        """Sends SIGKILL if it is running; `wait` returns the exit status."""
        self._process.kill()

    def children(self) -> list[int]:
        """The ids of the processes that the program has started, in order."""
        files = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return sorted(int(child) for file in files for child in file.read_text().split())

    def is_alive(self) -> bool:
        """Whether the program is running."""
        return self._process.is_alive()

    def errors(self) -> str:
        """What the program has printed on standard error so far."""
        return self._streams[2].read_text() if self._streams[2].exists() else ""

    def wait(self) -> CompletedProcess:
        """Its exit status and what it printed.

        Raises:
            TimeoutExpired: it did not end, and was killed.
        """
        with self._directory:
            self._process.join(SECONDS)
            if self._process.exitcode is None:
                self._process.kill()
                raise TimeoutExpired(self._command, SECONDS)
            out, errors = (path.read_text() for path in self._streams[1:])
            return CompletedProcess(self._command, self._process.exitcode, out, errors)


def wait_for_all(forks: Sequence[Fork]) -> list[CompletedProcess]:
    """Waits for processes that work together; if one does not end in time, kills all.

    Returns:
        Exit status and printed text of each, in their order.

    Raises:
        TimeoutExpired: one did not end.
    """
    try:
        return [fork.wait() for fork in forks]
    finally:
        for fork in forks:
            fork.kill()


def _main(command: list[str], streams: list[Path], variables: dict[str, str]) -> None:
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin, sys.argv = os.fdopen(0), command
    os.environ.update(variables)
    try:
        if command[0].endswith(".py"):
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except Exception:  # as in Python, before the exit functions, which may end the process
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
