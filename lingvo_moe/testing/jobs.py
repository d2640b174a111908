"""Training jobs of one or two processes on the tiny dataset, as the command line starts them."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import SECONDS, Fork, wait_for_all
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.tiny_world import dataset
from lingvo_moe.testing.waiting import wait_until

EVAL_EVERY = 8
_OTHERS = re.compile(r"WARNING: All log|[IWEF]\d{4} ")
# Many experts, moving averages, an evaluation every 8 steps, a background save every 3.
MANY_EXPERTS = (
    *SMALLEST,
    "model.moe.num_experts=64",
    "model.moe.training=Einsum(groups=2)",
    "input.virtual_shards=4",
    "optimizer.ema_decay=0.9",
    "train.log_every=1",
    f"train.eval_every={EVAL_EVERY}",
    "train.checkpoint_every=3",
    "train.source_use_sentences=2",
)


def start(
    logdir: Path,
    steps: int,
    *,
    mesh: str | None = None,
    processes: int = 1,
    devices: int = 1,
    flags: Sequence[str] = (),
) -> list[Fork]:
    """The processes of a job that trains up to a step.

    Args:
        logdir: of the job.
        steps: to train in all, with those of earlier jobs.
        mesh: of runtime spmd; None for runtime local.
        processes: their number.
        devices: of each process.
        flags: further ones.
    """
    command = [
        *("lingvo_moe.tools.train", "--model=tiny.MoE", f"--data={dataset().directory}"),
        *(f"--logdir={logdir}", f"--set=train.max_steps={steps}"),
        *(f"--set={text}" for text in MANY_EXPERTS),
        *(["--runtime=spmd", f"--mesh={mesh}"] if mesh else []),
        *flags,
    ]
    places: list[list[str]] = [[]]
    if processes > 1:
        address = (f"--coordinator={free_address()}", f"--process_count={processes}")
        places = [[*address, f"--process_index={i}"] for i in range(processes)]
    return [Fork(*command, *place, variables=variables(devices)) for place in places]


def own_lines(printed: str) -> list[str]:
    """The lines that are not messages of TensorFlow."""
    return [line for line in printed.splitlines() if not _OTHERS.match(line)]


def lines(jobs: Sequence[Fork]) -> list[str]:
    """What the first process, which reports, has printed on standard error."""
    return own_lines(jobs[0].errors())


def wait_for(jobs: Sequence[Fork], text: str, seconds: float = SECONDS) -> None:
    """Returns when the first process has printed a text, or one of the processes has ended.

    Raises:
        TimeoutError: neither within this time; all processes are killed.
    """
    _wait(jobs, lambda: text in jobs[0].errors(), f"a process prints {text!r}", seconds)


def wait_for_lines(jobs: Sequence[Fork], count: int, seconds: float = SECONDS) -> None:
    """As `wait_for`, for a number of `lines`."""
    _wait(jobs, lambda: len(lines(jobs)) >= count, f"a process prints {count} lines", seconds)


def _wait(jobs: Sequence[Fork], condition: Callable[[], bool], what: str, seconds: float) -> None:
    try:
        wait_until(lambda: condition() or not all(job.is_alive() for job in jobs), what, seconds)
    except TimeoutError as error:
        for job in jobs:
            job.kill()
        raise TimeoutError(f"{error} Its last lines:\n{jobs[0].errors()[-3000:]}") from error


def finish(jobs: Sequence[Fork]) -> str:
    """Waits for the processes and asserts that all end without an error.

    Returns:
        What the first process printed on standard error.
    """
    ended = wait_for_all(jobs)
    assert [job.returncode for job in ended] == [0] * len(jobs), ended[0].stderr[-3000:]
    return ended[0].stderr


def tensors(logdir: Path, step: int) -> Mapping[str, np.ndarray]:
    """All of the checkpoint of a step: weights, slots, averages, the position of the input."""
    stored = ModelDir.open(logdir).checkpoints.read(step).tensors
    return {name: np.asarray(value) for name, value in stored.items()}


def assert_same_bits(ours: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Fails with the name of the first tensor that differs."""
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name].tobytes() == value.tobytes(), name
