"""The training loop: steps, progress, evaluation, checkpoints, signals."""

import contextlib
import faulthandler
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system.progress import hours
from lingvo_moe.system.progress import report as print_line
from lingvo_moe.training.checkpoint import NO_BEST, Best, Checkpoint, Checkpointer
from lingvo_moe.training.criteria import Criterion, DevLoss
from lingvo_moe.training.meter import Meter
from lingvo_moe.training.process import ALONE, Interruption, Process
from lingvo_moe.training.saver import Saver
from lingvo_moe.training.signals import deferred
from lingvo_moe.training.step import Compiling
from lingvo_moe.training.summaries import SummaryWriter
from lingvo_moe.training.train_params import TrainParams

CURE = "Try a lower learning rate, train.clip_norm, or activation_dtype='float32'."
_INPUT = "input/"
_FIRST_LINE = 10  # steps until a line of progress, whose ETA says how long the run takes


class Runtime(Protocol):
    """The part of a runtime that the loop uses."""

    def initialize(self, seed: int) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None: ...

    def train(self, batch: Mapping[str, np.ndarray], compiling: Compiling) -> NestedMap: ...


class BatchSource(Protocol):
    """The part of an input that the loop uses; `state` is that after the last returned batch."""

    def next_batch(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None: ...


class Evaluation(NamedTuple):
    """The result of an evaluation."""

    # by TensorBoard tag; "dev/loss" and what train.best_by needs are among them
    scalars: dict[str, float]
    text: str  # for the progress line
    warnings: Sequence[str] = ()  # lines to report


class TrainResult(NamedTuple):
    """The state of training."""

    step: int  # number of steps taken
    finished: bool  # false if a signal stopped training early
    best_step: int | None  # of the best evaluation; None without one
    best_loss: float  # what the criterion minimizes, at the best evaluation
    signal: int | None  # number of the signal that any process received; None without one
    criterion: Criterion = DevLoss()  # train.best_by

    @property
    def best(self) -> str:
        """The best evaluation as text."""
        name = self.criterion.name
        if self.best_step is None:
            return f"no {name} was measured"
        return f"best {name} {self.criterion.text(self.best_loss)} at step {self.best_step}"


def train(
    runtime: Runtime,
    batches: BatchSource,
    params: TrainParams,
    logdir: Path,
    *,
    summarize: Callable[[NestedMap], dict[str, float]],
    evaluate: Callable[[int], Evaluation | None],
    report: Callable[[str], None] = print_line,
    process: Process = ALONE,
    initialize: Callable[[], None] | None = None,
    started: Callable[[int], None] = lambda step: None,
) -> TrainResult:
    """Trains to params.max_steps, from the newest checkpoint in logdir if there is one.

    After SIGINT, SIGTERM or SIGHUP the loop finishes the current step, saves, and returns. A
    resumed run takes the same steps as an uninterrupted one. If something else than a step fails,
    such as the input or an evaluation, a single process saves before it raises the error; an
    evaluation that failed is the first thing that a resumed run does.

    Args:
        runtime: runs the steps.
        batches: the input; its position is part of the checkpoint.
        params: see TrainParams.
        logdir: checkpoints in `checkpoints/`, events for TensorBoard in `events/`.
        summarize: sums of the metrics since the last call -> scalars by tag, with "loss" and
            "tokens" among them.
        evaluate: step -> scores of the runtime's weights on dev; None without dev data.
        report: takes each line of progress.
        process: this process among those that train together; each saves its own pieces.
        initialize: initializes the runtime where there is no checkpoint; None draws all weights.
        started: called with the number of steps taken, before this run's first step, after the
            state is initialized or restored. Nothing in logdir is written before it.

    Raises FloatingPointError: too many steps were not finite, or the state is not finite; earlier
    checkpoints are finite; OSError: a checkpoint could not be written; earlier ones are unchanged.
    """
    loop = _Loop(runtime, batches, params, logdir, summarize, evaluate, report, process)
    with deferred() as received, loop.saver:
        draw = initialize or (lambda: runtime.initialize(params.seed))
        return loop.run(received, draw, started)


class _Loop:
    """The state of training: steps taken and saved, and the best evaluation."""

    def __init__(self, runtime, batches, params, logdir, summarize, evaluate, report, process):
        self.runtime, self.batches, self.params = runtime, batches, params
        self.summarize, self.evaluate, self.report = summarize, evaluate, report
        keep = params.keep_checkpoints, params.keep_every_steps
        self.checkpoints = Checkpointer(logdir / "checkpoints", *keep, process)
        self.saver = Saver(self.checkpoints)
        self.logdir, self.process = logdir, process
        self.interruption, self.meter = Interruption(process), Meter()
        self.step, self.saved_step, self.best = 0, None, NO_BEST
        self.started_at = 0  # step
        self.is_sound = True  # False after a step that failed, which may have changed some weights
        self.skipped = 0  # steps in a row, up to the newest one that was looked at
        self.evaluation_seconds = 0.0  # of the last evaluation and its checkpoint

    @property
    def last_saved(self) -> int:
        """The step of the newest checkpoint; without one, that of the initial state."""
        return self.started_at if self.saved_step is None else self.saved_step

    def run(
        self,
        received: Callable[[], int | None],
        initialize: Callable[[], None],
        started: Callable[[int], None],
    ) -> TrainResult:
        """The loop itself."""
        signal = None
        try:
            self._start(initialize)
            started(self.step)
        except BaseException:
            with contextlib.suppress(OSError):
                self.checkpoints.directory.rmdir()  # fails if not empty
            raise
        if self.step > self.params.max_steps:
            self.report(
                f"{self.logdir} has {self.step} steps already, more than train.max_steps="
                f"{self.params.max_steps}: nothing is trained. Raise train.max_steps to go on."
            )
        self.started_at = self.step
        self.events = SummaryWriter(None if self.process.index else self.logdir / "events")
        self.events.restart(self.step + 1)
        try:
            if self.best.is_due:
                self._evaluate()
            while not (finished := self._is_finished()):
                if signal := self.interruption.agreed(received()):
                    break
                self._take_step()
                self.saver.check()
                self._after_step()
        except Exception:
            with contextlib.suppress(Exception):  # the first error is raised
                self._rescue()
            raise
        self._finish(finished)
        if not finished:
            where = "there" if self.saved_step == self.step else f"step {self.last_saved}"
            self.report(f"Interrupted at step {self.step}; the same command resumes from {where}.")
        if not signal:  # some processes may have one since they last agreed
            signal = -self.process.minimum(-(received() or 0)) or None
        best = self.best
        return TrainResult(self.step, finished, best.step, best.loss, signal, self.params.best_by)

    def _start(self, initialize):
        checkpoint = self.checkpoints.resume(self._restore)
        if checkpoint is None:
            initialize()
        else:
            self.step = self.saved_step = checkpoint.step
            self.best = checkpoint.best
            self.report(f"Resuming from step {self.step}.")
        self.meter.start(self.step)

    def _restore(self, checkpoint: Checkpoint):
        tensors = checkpoint.tensors
        self.runtime.restore(tensors)
        position = {name: tensors[name] for name in tensors if name.startswith(_INPUT)}
        self.batches.restore({n.removeprefix(_INPUT): np.asarray(t) for n, t in position.items()})

    def _is_finished(self):
        return self.step >= self.params.max_steps or self._out_of_patience()

    def _out_of_patience(self):
        patience = self.params.patience
        return patience is not None and self.best.evaluations_since >= patience

    def _take_step(self):
        with self._watched():
            start = time.monotonic()
            batch = self.batches.next_batch()
            self.meter.waited(time.monotonic() - start)
            self.is_sound = False
            self.meter.add(self.runtime.train(batch, self._compiling))
        self.step += 1
        self.is_sound = True

    @contextlib.contextmanager
    def _watched(self):
        """A block that takes longer than train.stall_seconds shows the stacks of all threads."""
        if self.params.stall_seconds is not None:
            faulthandler.dump_traceback_later(self.params.stall_seconds, file=2)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _rescue(self):
        """After an error, saves the steps since the last save.

        Not among several processes, of which others may be at a later step.
        """
        unsaved = self.is_sound and self.step > self.last_saved
        if self.process is ALONE and unsaved and self._may_save():
            self._save()
            self.saver.wait()
            self.report(f"Training failed; step {self.step} is saved.")

    @contextlib.contextmanager
    def _compiling(self):
        self.report("Compiling the step …")
        start = time.monotonic()
        faulthandler.cancel_dump_traceback_later()  # compiling may take any time
        yield
        seconds = time.monotonic() - start
        self.meter.compiled(seconds)
        self.report(f"Compiled in {seconds:.0f} s.")

    def _after_step(self):
        """Does what is due: a line, an evaluation, a save."""
        p, last = self.params, self.step == self.params.max_steps
        log, evaluate, save = (
            last or self.step % every == 0
            for every in (p.log_every, p.eval_every, p.checkpoint_every)
        )
        log = log or self.step - self.started_at == _FIRST_LINE < p.log_every
        if not (log or evaluate or save):
            return
        may_save = self._may_save()
        if self.skipped >= p.skip_limit:
            raise FloatingPointError(
                f"Training ends at step {self.step}: the last {self.skipped} steps were not "
                f"finite. The last checkpoint is of step {self.last_saved}. {CURE}"
            )
        if log:
            self._log()
        if not last and (evaluate or save) and not may_save:
            self.report(
                f"step {self.step}  neither evaluated nor saved: the last "
                f"{self.skipped} steps were not finite and were skipped"
            )
        elif evaluate:
            self._evaluate()
        elif save:
            self._save()

    def _may_save(self):
        """Whether the newest step was finite; else the weights may be the cause."""
        for skipped in self.meter.new_skips():
            self.skipped = self.skipped + 1 if skipped else 0
        return not self.skipped

    def _log(self):
        if self.meter.is_empty:
            return
        metrics, seconds, rate, waited = self.meter.read()
        scalars = {"skipped_steps": float(metrics.skipped_steps)}
        skipped = f"  skipped {metrics.skipped_steps:.0f}" if metrics.skipped_steps else ""
        text = "no step was finite"
        if metrics.steps:
            scalars |= self.summarize(metrics)
            speed = scalars["tokens"] / seconds
            text = f"loss {scalars['loss']:.3f}  {speed:,.0f} tokens/s"
            scalars |= {"steps_per_second": rate, "tokens_per_second": speed}
            scalars["input_share"] = waited / seconds
            if "moves" in metrics:
                text += f"  {np.sum(metrics.moves):.0f} experts moved"
        eta = hours(self._seconds_left(rate))
        self.report(f"step {self.step}/{self.params.max_steps}  {text}{skipped}  ETA {eta}")
        self.events.scalars(self.step, {f"train/{tag}": x for tag, x in scalars.items()})

    def _seconds_left(self, steps_per_second):
        """Of steps and evaluations, if each evaluation takes as long as the last one."""
        last, every = self.params.max_steps, self.params.eval_every
        if self.step >= last:
            return 0.0
        # That of this step, if it is due, comes after the line of progress.
        evaluations = math.ceil(last / every) - math.ceil(self.step / every) + 1
        steps = (last - self.step) / steps_per_second
        return steps + evaluations * self.evaluation_seconds

    def _evaluate(self):
        self._log()
        start = time.monotonic()
        self.best = self.best._replace(is_due=True)  # it may fail
        evaluation = self.evaluate(self.step)
        if evaluation is not None:
            self.report(f"step {self.step}  {evaluation.text}")
            for line in evaluation.warnings:
                self.report(line)
            self.events.scalars(self.step, evaluation.scalars)
            by = self.params.best_by
            if by.is_better(loss := float(by.loss(evaluation.scalars)), self.best.loss):
                self.best = Best(self.step, loss)
            else:
                since = self.best.evaluations_since + 1
                self.best = self.best._replace(evaluations_since=since)
        self.best = self.best._replace(is_due=False)
        if self.step == self.saved_step:  # resumed where it failed
            self.checkpoints.record(self.step, self.best)
        else:
            self._save()
        self.evaluation_seconds = time.monotonic() - start
        self.meter.leave_out(self.evaluation_seconds)

    def _save(self):
        self._log()  # else a resumed run would not show the steps since the last line
        state = {f"{_INPUT}{name}": value for name, value in self.batches.state().items()}
        with self._watched():
            self.saver.save(self.step, {**self.runtime.state(), **state}, self.best)
        self.saved_step = self.step

    def _finish(self, finished):
        """Waits for the last checkpoint."""
        if self._out_of_patience():
            since, p = self.best.evaluations_since, self.params
            self.report(
                f"No better {p.best_by.name} in {since} evaluations (train.patience={p.patience}): "
                f"training ends at step {self.step}."
            )
        if self.step != self.saved_step and (finished or self._may_save()):
            self._save()
        with self._watched():
            self.saver.wait()
        self.events.close()
