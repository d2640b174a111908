"""Additional processes for preparing a corpus. Each makes pieces that no other process makes.

A helper ends when the process that started it ends or is killed. If a helper dies, the others make
its pieces.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator

from lingvo_moe.core import child
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


class _Helper:
    """A process; leaving the block ends it."""

    def __init__(self, work: Work):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = child.start(__name__, stdout=subprocess.DEVNULL, stderr=self._errors)
        child.send(self._process, work)

    def __enter__(self) -> "_Helper":
        return self

    def __exit__(self, *exception) -> None:
        self.end()
        self._errors.close()

    def end(self) -> str:
        """Ends the process; returns the last line of its errors if it failed."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.wait() in (0, child.PARENT_ENDED):
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return "".join(lines[-1:]) or f"exit status {self._process.returncode}"


def _main() -> None:
    for stage in stages(child.receive()):
        run_stage(stage, lambda count: None)


if __name__ == "__main__":
    _main()
