"""kill -9 at random moments: every restart resumes, and the final weights are equal to the bit.

The moments fall on the start, on steps, evaluations and saves. The number of kills can be given:
LINGVO_MOE_KILLS=50 python -m pytest -m slow -s lingvo_moe/tools/kill_slow_test.py
"""

import collections
import os
import random
import re
import signal
import time

import numpy as np
import pytest

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.tiny_world import dataset

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LINGVO_MOE_KILLS", "4"))
SEED = 38  # of the moments
STEPS = 10**6  # of the killed runs
LINES = 22  # a kill comes at latest after so many lines of a run; about ten are before its steps
PAUSE = 0.1  # seconds from a line to the kill, at most
EVAL_EVERY = 8
TEXTS = (
    *SMALLEST,
    "model.moe.num_experts=64",
    "model.moe.num_groups=2",
    "model.moe.dispatcher=Einsum()",
    "optimizer.ema_decay=0.9",
    "train.log_every=1",
    f"train.eval_every={EVAL_EVERY}",
    "train.checkpoint_every=3",
    "train.source_use_sentences=2",
)


def start(logdir, steps):
    return Fork(
        *("lingvo_moe.tools.train", "--model=tiny.MoE", f"--data={dataset().directory}"),
        *(f"--logdir={logdir}", f"--set=train.max_steps={steps}"),
        *(f"--set={text}" for text in TEXTS),
    )


def own_lines(printed):
    """The lines that are not messages of TensorFlow."""
    return [line for line in printed.splitlines() if not re.match(r"WARNING: All|[IWEF]\d", line)]


def kill_at_random(process, rng):
    """Kills a run at a random line and moment; returns the lines that it had printed."""
    count, pause = rng.randrange(LINES), rng.uniform(0, PAUSE)
    while len(own_lines(process.errors())) < count and process.is_alive():
        time.sleep(0.03)
    time.sleep(pause)
    process.kill()
    ended = process.wait()
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    return own_lines(ended.stderr)


def moment(printed, logdir, begun):
    """What a run that began at a time was doing, by its last line and its files."""
    last = re.match(r"step (\d+)(/?)", printed[-1]) if printed else None
    if last is None:
        return "starting"
    if any(path.stat().st_mtime > begun for path in logdir.glob("checkpoints/*.partial")):
        return "saving"
    due = int(last[1]) % EVAL_EVERY == 0
    return "evaluating" if last[2] and due else "training"


def finish(logdir, steps):
    """What a run up to a step prints, and its final checkpoint."""
    ended = start(logdir, steps).wait()
    assert ended.returncode == 0, ended.stderr[-3000:]
    stored = ModelDir.open(logdir).checkpoints.read(steps).tensors
    return ended.stderr, {name: np.asarray(value) for name, value in stored.items()}


def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path):
    rng, killed, moments = random.Random(SEED), tmp_path / "killed", collections.Counter()
    for number in range(1, KILLS + 1):
        begun = time.time()
        printed = kill_at_random(start(killed, STEPS), rng)
        moments[moment(printed, killed, begun)] += 1
        print(f"{time.ctime()}: kill {number}, {printed[-1:]}", flush=True)
    newest = (ModelDir.open(killed).checkpoints.steps() or [0])[-1]
    assert newest > 0, f"no progress: {moments}"
    printed, ours = finish(killed, newest + 5)
    assert f"Resuming from step {newest}." in printed
    _, expected = finish(tmp_path / "whole", newest + 5)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name].tobytes() == value.tobytes(), name
    assert not list(tmp_path.rglob("*partial*"))
    print(f"{KILLS} kills, {newest} steps: {dict(moments)}")
