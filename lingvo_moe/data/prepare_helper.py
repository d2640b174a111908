"""Additional processes for preparing a corpus. Each makes pieces that no other process makes.

A helper ends when the process that started it ends or is killed. If a helper dies, the others make
its pieces.
"""

import contextlib
import io
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

from lingvo_moe.core.plugins import import_plugins, imported
from lingvo_moe.data.stages import run_stage, stages
from lingvo_moe.data.work import Work


@contextlib.contextmanager
def helpers(work: Work, count: int, report: Callable[[str], None]) -> Iterator[None]:
    """Runs helpers while the block runs.

    Args:
        work: the preparation whose stages are run.
        count: number of processes.
        report: takes a warning for each helper that failed.
    """
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_Helper(work)) for _ in range(count)]
        yield
        for helper in started:
            if error := helper.end():
                report(f"warning: a helper process failed: {error}")


_LEFT = 3  # exit status of a helper whose parent process has ended


class _Helper:
    """A process; leaving the block ends it."""

    def __init__(self, work: Work):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin
        self._pipe = self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(imported(), self._pipe)
            pickle.dump(work, self._pipe)
            self._pipe.flush()

    def __enter__(self) -> "_Helper":
        return self

    def __exit__(self, *exception) -> None:
        self.end()
        self._errors.close()

    def end(self) -> str:
        """Ends the process; returns the last line of its errors if it failed."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        if self._process.wait() in (0, _LEFT):
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return "".join(lines[-1:]) or f"exit status {self._process.returncode}"


def _main() -> None:
    stream = io.BufferedReader(io.FileIO(0, closefd=False))
    import_plugins(pickle.load(stream))
    work = pickle.load(stream)
    if select.select([stream], [], [], 0)[0]:  # the parent process has already ended
        sys.exit(_LEFT)
    threading.Thread(target=_end_with_starter, args=(stream,), daemon=True).start()
    for stage in stages(work):
        run_stage(stage, lambda count: None)


def _end_with_starter(stream):
    stream.read()  # until the other end of the pipe is closed
    os._exit(_LEFT)


if __name__ == "__main__":
    _main()
