"""Additional processes for preparing a corpus. Each makes pieces that no other process makes.

A helper ends when the process that started it ends or is killed. If a helper dies, the others make
its pieces.
"""

import contextlib
import subprocess
from collections.abc import Iterator

from lingvo_moe.core import child
from lingvo_moe.data.stages import run_stage, stages
from lingvo_moe.data.work import Work


@contextlib.contextmanager
def helpers(work: Work, count: int) -> Iterator[None]:
    """Runs helpers while the block runs, on the stages of a preparation."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = child.start(__name__, stdout=subprocess.DEVNULL)
            stack.callback(_end, process)
            child.send(process, work)
        yield


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(BrokenPipeError), process:  # closes its pipe, and waits for its end
        pass


def _main() -> None:
    work = child.receive()
    with contextlib.suppress(ValueError, OSError):  # the process that started it tells the user
        for stage in stages(work):
            run_stage(stage, lambda count: None)


if __name__ == "__main__":
    _main()
