"""The loop on a model of one number: the state is the sum of all batches seen so far."""

import math
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.train.checkpoint import Checkpointer
from lingvo_moe.train.loop import Evaluation, TrainParams, train


class Sum:
    """A runtime whose only weight adds up what it is fed; a negative number makes a NaN."""

    def __init__(self):
        self.total = None

    def initialize(self, seed):
        self.total = np.float64(seed)

    def state(self):
        return {"theta/total": self.total}

    def restore(self, tensors):
        self.total = np.asarray(tensors["theta/total"])

    def train(self, batch):
        self.total = self.total + batch["x"]
        loss = math.nan if batch["x"] < 0 else self.total
        return NestedMap(nll=np.float64(loss), tokens=np.float64(2))


class Counting:
    """Batches 1, 2, 3, …; `events` maps a number to what happens when it is asked for."""

    def __init__(self, events=None):
        self.count, self.events = 0, events or {}

    def next_batch(self):
        self.count += 1
        replacement = self.events.get(self.count, lambda: None)()
        return {"x": np.float64(self.count if replacement is None else replacement)}

    def state(self):
        return {"count": np.int64(self.count)}

    def restore(self, state):
        self.count = int(state["count"])


def _train(logdir, *, batches=None, losses=None, **params):
    runtime, lines = Sum(), []
    losses = iter(losses or [])
    result = train(
        runtime,
        batches or Counting(),
        TrainParams(**{"max_steps": 10, "log_every": 2, "eval_every": 5, "seed": 0} | params),
        logdir,
        summarize=lambda m: {"loss": float(m.nll / m.tokens), "tokens": float(m.tokens)},
        evaluate=lambda: next(
            (Evaluation(x, {"dev/loss": x}, f"dev loss {x}") for x in losses), None
        ),
        report=lines.append,
    )
    return runtime.total, result, lines


def test_a_whole_run(tmp_path):
    total, result, lines = _train(tmp_path, losses=[3.0, 4.0])
    assert total == 55  # 1 + 2 + … + 10
    assert result == (10, True, 5, 3.0)
    assert Checkpointer(tmp_path / "checkpoints").best() == 5
    # The line of step 2 averages losses 1 and 3 over 2 tokens each: (1 + 3) / 4.
    assert lines[0].startswith("step 2/10  loss 1.000  ")
    assert "tokens/s  ETA 0:00:" in lines[0]
    assert "step 5  dev loss 3.0" in lines
    (events,) = (tmp_path / "events").iterdir()
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert {"train/loss", "train/tokens_per_second", "dev/loss"} <= tags


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_call_resumes_exactly(tmp_path, number):
    batches = Counting({4: lambda: os.kill(os.getpid(), number)})
    total, result, lines = _train(tmp_path, batches=batches)
    assert (total, result.step, result.finished) == (10, 4, False)
    assert lines[-1].startswith("Interrupted at step 4")
    total, result, lines = _train(tmp_path)
    assert lines[0] == "Resuming from step 4."
    assert (total, result.step, result.finished) == (55, 10, True)


def test_a_finished_run_does_nothing_more(tmp_path):
    _train(tmp_path)
    total, result, _ = _train(tmp_path)
    assert (total, result.step, result.finished) == (55, 10, True)


def test_patience_ends_training_and_outlives_a_restart(tmp_path):
    _, result, _ = _train(tmp_path, losses=[1.0, 2.0, 2.0], eval_every=1, patience=2)
    assert result == (3, True, 1, 1.0)
    _, result, _ = _train(tmp_path, losses=[0.5], eval_every=1, patience=2)
    assert result == (3, True, 1, 1.0)


def test_a_loss_that_is_not_finite_never_reaches_a_checkpoint(tmp_path):
    batches = Counting({6: lambda: -1.0})
    with pytest.raises(FloatingPointError, match=r"checkpoint of step 5 is from before"):
        _train(tmp_path, batches=batches, log_every=100, eval_every=100, checkpoint_every=5)
    assert Checkpointer(tmp_path / "checkpoints").steps() == [5]


def test_params_are_checked():
    with pytest.raises(ValueError, match=r"train.log_every must be >= 1, got 0"):
        TrainParams(log_every=0)
