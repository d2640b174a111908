"""The loop with a model of one number: the state is the sum of all batches so far."""

import dataclasses
import math
import os
import re
import shutil
import signal
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training import loop, meter
from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.criteria import DevBleu, DevLoss
from lingvo_moe.training.loop import Evaluation, TrainResult, train
from lingvo_moe.training.process import ALONE, Interruption, Process
from lingvo_moe.training.train_params import TrainParams


class Sum:
    """A runtime whose only weight adds up what it is fed; negative numbers are not finite."""

    def __init__(self):
        self.total, self.compiled = None, False

    def initialize(self, seed):
        self.total = np.float64(seed)

    def state(self):
        return {"theta/total": self.total}

    def restore(self, tensors):
        self.total = np.asarray(tensors["theta/total"])

    def train(self, batch, compiling):
        if self.compiled:
            return self.step(batch)
        self.compiled = True
        with compiling():
            self.compile()
            return self.step(batch)

    def compile(self):
        pass

    def step(self, batch):
        if batch["x"] < 0:
            return NestedMap(nll=0.0, tokens=0.0, skipped_steps=1.0)
        self.total = self.total + batch["x"]
        return NestedMap(nll=np.float64(self.total), tokens=2.0, skipped_steps=0.0)


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


def _train(logdir, *, batches=None, losses=None, bleu=None, report=None, process=ALONE, **params):
    runtime, lines = Sum(), []
    tag, values = ("dev/bleu", bleu) if bleu else ("dev/loss", losses or ())
    found = ({tag: value} for value in values)
    result = train(
        runtime,
        batches or Counting(),
        TrainParams(**{"max_steps": 10, "log_every": 2, "eval_every": 5, "seed": 0} | params),
        logdir,
        summarize=lambda m: {"loss": float(m.nll / m.tokens), "tokens": float(m.tokens)},
        evaluate=lambda step: next(
            (
                Evaluation(x, f"dev loss {x.get('dev/loss')}", warnings=[f"at {step}"])
                for x in found
            ),
            None,
        ),
        report=report or lines.append,
        process=process,
    )
    return runtime.total, result, lines


def test_a_whole_run(tmp_path):
    total, result, lines = _train(tmp_path, losses=[3.0, 4.0])
    assert total == 55  # 1 + 2 + … + 10
    assert result == TrainResult(10, True, 5, 3.0, None)
    assert Checkpointer(tmp_path / "checkpoints").best() == 5
    # The line of step 2 averages losses 1 and 3 over 2 tokens each: (1 + 3) / 4.
    assert lines[0] == "Compiling the step …"
    assert lines[2].startswith("step 2/10  loss 1.000  ")
    after = lines.index("step 5  dev loss 3.0")
    assert lines[after + 1] == "at 5"
    (events,) = (tmp_path / "events").iterdir()
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert {"train/loss", "train/tokens_per_second", "dev/loss"} <= tags


def _slow(monkeypatch):
    """Compiling takes 29 s and a step 1 s; returns the clock."""
    clock, step = [0.0], Sum.step

    def wait(seconds):
        clock[0] += seconds

    monkeypatch.setattr(Sum, "compile", lambda self: wait(29))
    monkeypatch.setattr(Sum, "step", lambda self, batch: (wait(1), step(self, batch))[1])
    time = types.SimpleNamespace(monotonic=lambda: clock[0])
    for module in (loop, meter):
        monkeypatch.setattr(module, "time", time)
    return clock


def test_the_time_left_includes_evaluations_after_the_first(tmp_path, monkeypatch):
    """Evaluations, after steps 5, 10 and 12, take 7 s each."""
    clock = _slow(monkeypatch)

    def losses():
        while True:
            clock[0] += 7
            yield 1.0

    _, _, lines = _train(tmp_path, losses=losses(), max_steps=12, log_every=1)
    left = {
        found[1]: found[2] for line in lines if (found := re.search(r"^step (\d+)/.* (\S+)$", line))
    }
    assert left["5"] == "0:00:07"  # 7 steps; no evaluation was measured
    assert left["8"] == "0:00:18"  # 4 steps and two evaluations
    assert left["10"] == "0:00:16"  # 2 steps and two evaluations, one of them of this step
    assert left["11"] == "0:00:08"
    assert left["12"] == "0:00:00"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_the_same_call_resumes_exactly(tmp_path, number, capsys):
    batches = Counting({4: lambda: os.kill(os.getpid(), number)})
    total, result, lines = _train(tmp_path, batches=batches, log_every=3)
    assert (total, result.step, result.finished, result.signal) == (10, 4, False, number)
    assert capsys.readouterr().err.startswith(
        f"{number.name}: saving after the current step or evaluation"
    )
    assert lines[-1].startswith("Interrupted at step 4")
    total, result, lines = _train(tmp_path, log_every=3)
    assert lines[0] == "Resuming from step 4."
    assert (total, result.step, result.finished, result.signal) == (55, 10, True, None)
    assert sum(tokens for _, tokens in _points(tmp_path, "train/tokens")) == 20  # 2 a step


def test_a_signal_at_the_last_step_is_told_too(tmp_path):
    batches = Counting({10: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    _, result, _ = _train(tmp_path, batches=batches)
    assert (result.step, result.finished, result.signal) == (10, True, signal.SIGTERM)


def test_a_signal_to_another_process_at_the_last_step_is_told_too(tmp_path):
    asked = []

    def minimum(value):
        asked.append(value)
        return -signal.SIGTERM if value == 0 else value  # 0: no signal came to this one

    _, result, _ = _train(tmp_path, process=Process(0, minimum))
    assert (result.finished, result.signal, asked[-1]) == (True, signal.SIGTERM, 0)


def test_when_the_input_fails_what_was_trained_is_saved(tmp_path):
    def fail():
        raise OSError("Shard 3 is damaged.")

    batches, lines = Counting({4: fail}), []
    with pytest.raises(OSError, match="Shard 3"):
        _train(tmp_path, batches=batches, report=lines.append)
    assert lines[-1] == "Training failed; step 3 is saved."
    assert Checkpointer(tmp_path / "checkpoints").steps() == [3]


@dataclasses.dataclass(frozen=True)
class Own(DevLoss):
    """A criterion of a plug-in."""

    value: Callable[[float], Any] = np.float32

    def loss(self, scalars):
        return self.value(scalars["dev/loss"])


def test_a_criterion_may_return_a_number_of_numpy(tmp_path):
    _, result, _ = _train(tmp_path, losses=[3.0, 4.0], best_by=Own())
    assert (result.step, result.best_step, result.best_loss) == (10, 5, 3.0)
    assert Checkpointer(tmp_path / "checkpoints").best() == 5


@pytest.mark.parametrize("last", [5, 10])
def test_an_evaluation_that_fails_is_made_by_the_resumed_run(last, tmp_path):
    with pytest.raises(ZeroDivisionError):
        _train(tmp_path, losses=[3.0], best_by=Own(value=lambda loss: 1 / 0), max_steps=last)
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    assert checkpoints.steps() == [5]
    _, result, lines = _train(tmp_path, losses=[3.0, 4.0], max_steps=last)
    assert lines[1] == "step 5  dev loss 3.0"
    assert result.best_step == checkpoints.best() == 5
    assert checkpoints.steps() == sorted({5, last})
    _, result, lines = _train(tmp_path, losses=[1.0], max_steps=last)
    assert (result.best_loss, len(lines)) == (3.0, 1)


def test_a_stall_shows_the_stacks_but_compiling_may_take_long(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Sum, "compile", lambda self: time.sleep(0.3))
    _train(tmp_path, max_steps=1, stall_seconds=0.1)
    assert capfd.readouterr().err == ""
    _train(tmp_path, max_steps=2, stall_seconds=0.1, batches=Counting({2: lambda: time.sleep(0.3)}))
    assert "in next_batch" in capfd.readouterr().err


def test_after_a_step_that_failed_half_way_nothing_is_saved(tmp_path, monkeypatch):
    step = Sum.step

    def fail(self, batch):
        metrics = step(self, batch)
        if batch["x"] == 8:
            raise MemoryError
        return metrics

    monkeypatch.setattr(Sum, "step", fail)
    with pytest.raises(MemoryError):
        _train(tmp_path)
    assert Checkpointer(tmp_path / "checkpoints").steps() == [5]


def _steps_asked(others, signal_at=lambda step: None, last=200):
    """The steps, of 200 of 1/8 s, at which a process asks the others, and the last step."""
    asked, clock = [], [0.0]

    def minimum(value):
        asked.append(step)
        return min(value, others(step))

    interruption = Interruption(Process(0, minimum), lambda: clock[0])
    for step in range(last):
        if number := interruption.agreed(signal_at(step)):
            return asked, step, number
        clock[0] += 0.125
    return asked, None, None


def test_several_processes_ask_each_other_every_five_seconds():
    """5 s / 0.125 s is 40 steps; the first two tell how long a step takes."""
    assert _steps_asked(lambda step: 1000) == ([0, 1, 2, 42, 82, 122, 162], None, None)
    # Another would be asked after 10 steps: its pace is 10 steps in 5 s.
    assert _steps_asked(lambda step: 10, last=30) == ([0, 1, 2, 12, 22], None, None)
    assert _steps_asked(lambda step: 1, last=4) == (
        [0, 1, 2, 3],
        None,
        None,
    )  # 5 s a step, or longer


def test_whoever_of_several_processes_is_interrupted_all_stop_at_one_step():
    stopped = ([0, 1, 2, 42, 82], 82, signal.SIGTERM)
    assert _steps_asked(lambda step: -signal.SIGTERM if step > 50 else 1000) == stopped
    mine = _steps_asked(lambda step: 1000, lambda step: signal.SIGTERM if step > 50 else None)
    assert mine == stopped


def test_patience_ends_training_and_outlives_a_restart(tmp_path):
    _, result, lines = _train(tmp_path, losses=[1.0, 2.0, 2.0], eval_every=1, patience=2)
    assert lines[-1] == (
        "No better dev loss in 2 evaluations (train.patience=2): training ends at step 3."
    )
    assert result == TrainResult(3, True, 1, 1.0, None)
    _, result, _ = _train(tmp_path, losses=[0.5], eval_every=1, patience=2)
    assert result == TrainResult(3, True, 1, 1.0, None)


def test_the_best_by_bleu(tmp_path):
    params = {"best_by": DevBleu(), "dev_bleu_sentences": 9, "eval_every": 1, "patience": 2}
    _, result, lines = _train(tmp_path, bleu=[0.0, 0.0, 0.0, 0.0, 7.5, 7.5, 0.0], **params)
    assert (result.step, result.best) == (7, "best dev BLEU 7.5 at step 5")
    assert Checkpointer(tmp_path / "checkpoints").best() == 5
    assert lines[-1].startswith("No better dev BLEU in 2 evaluations (train.patience=2)")


def _negative(*numbers):
    return Counting({number: lambda: -1.0 for number in numbers})


def test_steps_that_are_not_finite_are_skipped_and_counted(tmp_path):
    total, result, lines = _train(tmp_path, batches=_negative(3, 4, 6), eval_every=10)
    assert (total, result.step) == (55 - 3 - 4 - 6, 10)
    assert "step 4/10  no step was finite  skipped 2  ETA" in " ".join(lines)
    # The mean of step 6's line is that of step 5 alone: 1 + 2 + 5 over 2 tokens.
    assert any(re.match(r"step 6/10  loss 4\.000  .* tokens/s  skipped 1  ", s) for s in lines)
    (events,) = (tmp_path / "events").iterdir()
    points = tf.compat.v1.train.summary_iterator(str(events))
    values = [value for point in points for value in point.summary.value]
    skipped = [v.simple_value for v in values if v.tag == "train/skipped_steps"]
    assert skipped == [0, 2, 1, 0, 0]


def _points(logdir, tag):
    """The points that TensorBoard shows: (step, value), as it reads events with a START."""
    points = []
    for path in sorted((logdir / "events").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.session_log.status == tf.compat.v1.SessionLog.START:
                points = [(step, value) for step, value in points if step < event.step]
            points += [(event.step, v.simple_value) for v in event.summary.value if v.tag == tag]
    return points


def test_tensorboard_shows_each_step_once(tmp_path):
    """Steps 6 to 8 are taken again from step 5, with other batches."""
    given = {"log_every": 1, "max_steps": 8}
    _train(tmp_path, batches=Counting({7: lambda: 70.0}), **given)
    shutil.rmtree(tmp_path / "checkpoints" / "step_00000008")
    _train(tmp_path, **given)
    shown = [step * (step + 1) / 4 for step in range(1, 9)]  # sums over two tokens
    assert _points(tmp_path, "train/loss") == list(enumerate(shown, 1))


def test_while_steps_are_skipped_nothing_is_saved_or_evaluated(tmp_path):
    batches = Counting(
        {5: lambda: -1.0, 6: lambda: (os.kill(os.getpid(), signal.SIGTERM), -1.0)[1]}
    )
    _, _, lines = _train(tmp_path, batches=batches, checkpoint_every=3, losses=[1.0])
    nothing = "neither evaluated nor saved: the last {} steps were not finite and were skipped"
    assert [line for line in lines if "nor" in line or "Interrupted" in line] == [
        f"step 5  {nothing.format(1)}",
        f"step 6  {nothing.format(2)}",
        "Interrupted at step 6; the same command resumes from step 3.",
    ]
    assert Checkpointer(tmp_path / "checkpoints").steps() == [3]


def test_after_several_skipped_steps_training_ends(tmp_path):
    with pytest.raises(FloatingPointError, match="lower learning"):
        _train(tmp_path, batches=_negative(*range(6, 99)), log_every=1, skip_limit=2)
    assert Checkpointer(tmp_path / "checkpoints").steps() == [5]


def test_a_weight_that_is_not_finite_never_reaches_a_checkpoint(tmp_path, monkeypatch):
    """The loss of step 6 is finite and its update is not, and 6 is saved before 7 could show it."""
    step = Sum.step

    def overflow(self, batch):
        metrics = step(self, batch)
        if batch["x"] == 6:
            self.total = np.float64(math.inf)
        return metrics

    monkeypatch.setattr(Sum, "step", overflow)
    with pytest.raises(FloatingPointError, match="NaN or"):
        _train(tmp_path, log_every=100, eval_every=100, checkpoint_every=3)
    assert Checkpointer(tmp_path / "checkpoints").steps() == [3]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"clip_norm": math.nan}, "got nan"),
        ({"best_by": DevBleu()}, "dev_bleu_sentences=300, or"),
        ({"seed": 3_000_000_000}, "got 3000000000"),
    ],
)
def test_params_are_checked(params, message):
    with pytest.raises(ValueError, match=message):
        TrainParams(**params)
