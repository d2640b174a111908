"""kill -9 at random moments: every restart resumes, and the final weights are equal to the bit.

The moments fall on steps, evaluations and saves. The numbers of kills can be lowered, for a look:
LINGVO_MOE_KILLS=5 python -m pytest -m slow lingvo_moe/tools/kill_slow_test.py
"""

import os
import random
import time

import numpy as np
import pytest

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.tiny_world import SHRINK, dataset

pytestmark = pytest.mark.slow

KILLS = {"local": 50}
SEED = 7  # of the moments
TEXTS = (
    *SHRINK,
    "model.moe.num_experts=64",
    "model.moe.num_groups=2",
    "model.moe.dispatcher=Einsum()",
    "optimizer.ema_decay=0.9",
    "train.log_every=2",
    "train.eval_every=10",
    "train.checkpoint_every=3",
    "train.dev_bleu_sentences=2",
)


def kills(runtime):
    return int(os.environ.get("LINGVO_MOE_KILLS", KILLS[runtime]))


def start(logdir, runtime, steps, processes=1, devices=1):
    """The processes of a job."""
    command = [
        *("lingvo_moe.tools.train", "--model=tiny.MoE", f"--data={dataset().directory}"),
        *(f"--logdir={logdir}", f"--max_steps={steps}", f"--runtime={runtime}"),
        *(f"--set={text}" for text in TEXTS),
    ]
    if runtime == "spmd":
        command += ["--mesh=expert:2"]
    if processes == 1:
        return [Fork(*command, variables=variables(devices))]
    address = [f"--coordinator={free_address()}", f"--process_count={processes}"]
    return [
        Fork(*command, *address, f"--process_index={i}", variables=variables(devices))
        for i in range(processes)
    ]


def wait(jobs):
    """What the jobs printed; all must succeed."""
    ended = [job.wait() for job in jobs]
    assert [job.returncode for job in ended] == [0] * len(jobs), ended[0].stderr[-3000:]
    return ended[0].stderr


def kill(jobs, moment, rng):
    """Kills one of the jobs or all, `moment` seconds after the first step.

    Returns:
        Whether all were running.
    """
    while "Compiled in" not in jobs[0].errors() and any(job.is_alive() for job in jobs):
        time.sleep(0.02)
    time.sleep(moment)
    alive = all(job.is_alive() for job in jobs)
    for job in rng.choice([jobs, jobs[:1], jobs[-1:]]):
        job.kill()
    for job in jobs:
        job.wait()
    return alive


def tensors(logdir):
    checkpoints = ModelDir.open(logdir).checkpoints
    return checkpoints.steps()[-1], checkpoints.read(checkpoints.steps()[-1]).tensors


@pytest.mark.parametrize(("runtime", "processes"), [("local", 1)])
def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path, runtime, processes):
    count, rng = kills(runtime), random.Random(SEED)
    steps = 40 + 6 * count
    begun = time.monotonic()
    lines = wait(start(tmp_path / "whole", runtime, steps, processes))
    seconds = time.monotonic() - begun
    assert "Goodput" in lines
    done = 0
    while done < count:
        jobs = start(tmp_path / "killed", runtime, steps, processes)
        if not kill(jobs, rng.uniform(0, 1.5 * seconds / count), rng):
            break  # the run has ended
        done += 1
    lines = wait(start(tmp_path / "killed", runtime, steps, processes))
    assert "Resuming from step" in lines
    assert done >= count // 2, f"only {done} kills: the moments are too late"
    (step, ours), (_, expected) = (tensors(tmp_path / name) for name in ("killed", "whole"))
    assert step == steps
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(ours[name]).tobytes() == np.asarray(value).tobytes(), name
    assert not list(tmp_path.rglob("*partial*"))
