"""kill -9 at random moments: every restart resumes, and the final weights are equal to the bit.

The moments fall on the start, on steps, evaluations and saves. Of several processes one is killed,
or all. The number of kills is LINGVO_MOE_KILLS, for example
LINGVO_MOE_KILLS=50 python -m pytest -m slow -s -k local lingvo_moe/tools/kill_slow_test.py
"""

import collections
import os
import random
import re
import signal
import time
from typing import Any

import pytest

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import jobs as training
from lingvo_moe.testing.forks import wait_for_all

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LINGVO_MOE_KILLS", "4"))
SEED = 38  # of the moments
STEPS = 10**6  # of the killed runs
LINES = 22  # a kill comes at latest after so many lines of a run; about ten are before its steps
PAUSE = 0.1  # seconds from a line to the kill, at most
# Experts move from process to process.
SLOTS = "model.moe.training=VExperts(devices=2, slots_per_device=40, groups=2, factors=())"
MOVING = (f"--set={SLOTS}", "--hardware=h100")
JOBS: dict[str, dict[str, Any]] = {
    "local": {},
    "spmd": {"mesh": "expert:2", "processes": 2, "flags": MOVING},
}


def kill_at_random(processes, rng):
    """Kills one of the processes or all, at a random line and moment.

    Returns:
        Whether all were running.
    """
    count, pause = rng.randrange(LINES), rng.uniform(0, PAUSE)
    training.wait_for_lines(processes, count)
    time.sleep(pause)
    alive = all(process.is_alive() for process in processes)
    victims = rng.choice([processes, processes[:1], processes[-1:]])
    # Before they have met, the others would wait for one that never comes.
    for process in victims if len(training.lines(processes)) > 1 else processes:
        process.kill()
    return alive


def moment(printed, logdir, begun):
    """What a run that began at a time was doing, by its last line and its files."""
    steps = [last for line in printed if (last := re.match(r"step (\d+)(/?)", line))]
    if not steps:
        return "starting"
    if any(path.stat().st_mtime > begun for path in logdir.glob("checkpoints/*.partial")):
        return "saving"
    last = steps[-1]
    due = int(last[1]) % training.EVAL_EVERY == 0
    return "evaluating" if last[2] and due else "training"


@pytest.mark.parametrize("runtime", JOBS)
def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path, runtime):
    rng, job, killed = random.Random(SEED), JOBS[runtime], tmp_path / "killed"
    moments: collections.Counter = collections.Counter()
    for number in range(1, KILLS + 1):
        begun = time.time()
        processes = training.start(killed, STEPS, **job)
        assert kill_at_random(processes, rng)
        ended = wait_for_all(processes)
        printed = training.own_lines(ended[0].stderr)
        codes = {process.returncode for process in ended}
        assert -signal.SIGKILL in codes
        errors = [line for line in printed if line.startswith(("error", "Traceback"))]
        assert all("ended without an error message" in line for line in errors), errors
        moments[moment(printed, killed, begun)] += 1
        print(f"{time.ctime()}: kill {number}, {codes}, {printed[-1:]}", flush=True)
    newest = (ModelDir.open(killed).checkpoints.steps() or [0])[-1]
    assert newest > 0, f"no progress: {moments}"
    whole = tmp_path / "whole"
    resumed, at_once = (
        training.finish(training.start(logdir, newest + 5, **job)) for logdir in (killed, whole)
    )
    assert f"Resuming from step {newest}." in resumed
    if runtime == "spmd":
        assert re.search("[1-9] experts moved", at_once)
    training.assert_same_bits(*(training.tensors(path, newest + 5) for path in (killed, whole)))
    assert not list(tmp_path.rglob("*partial*"))
    print(f"{runtime}: {KILLS} kills, {newest} steps: {dict(moments)}")
