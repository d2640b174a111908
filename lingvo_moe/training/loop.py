"""The training loop: steps, progress, evaluation, checkpoints, signals."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from lingvo_moe.core.fields import NonNegativeInt, Params, PositiveFloat, PositiveInt
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.progress import hours
from lingvo_moe.training import goodput
from lingvo_moe.training.checkpoint import (
    ALONE,
    NO_BEST,
    Best,
    Checkpoint,
    Checkpointer,
    Keep,
    Process,
)
from lingvo_moe.training.goodput import Goodput
from lingvo_moe.training.interruption import Interruption
from lingvo_moe.training.recovery import (
    CURE,
    NotFiniteError,
    SkippedSteps,
    describe,
    save_for_replay,
)
from lingvo_moe.training.saver import Saver
from lingvo_moe.training.signals import deferred
from lingvo_moe.training.summaries import SummaryWriter
from lingvo_moe.training.watchdog import Watchdog

_INPUT = "input/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainParams(Params):
    """The length of training, and its evaluations and checkpoints.

    Attributes:
        max_steps: the last step.
        log_every: steps between progress lines and TensorBoard points.
        eval_every: steps between evaluations on dev; each is a checkpoint too.
        checkpoint_every: steps between checkpoints for resuming.
        keep_checkpoints: number of newest checkpoints to keep besides the best.
        background_saves: whether a thread writes checkpoints, while steps go on. A save then needs
            host memory for a copy of what the process writes.
        keep_every_steps: checkpoints of multiples of this step are kept for ever; None for none.
        keep_every_hours: a checkpoint of each such number of hours is kept for ever; None for none.
        stall_seconds: a wait for the input, a step or a save that takes longer is reported, with
            the stack traces of all threads; None for no report.
        patience: stop after this number of evaluations without a better dev loss; None for never.
        dev_bleu_sentences: dev sentences, spread over the pairs, to translate for BLEU at each
            evaluation; 0 for none.
        source_use_sentences: dev sentences, spread over the pairs, whose loss is measured a second
            time with sources of other sentences at each evaluation; 0 for none.
        clip_norm: bound > 0 on the gradient's global norm; None for none.
        skip_limit: number of steps in a row that are not finite, and so are skipped, after which
            training goes back to the last checkpoint and goes on with other data.
        most_returns: number of times in a row that training goes back to the same checkpoint; then
            it ends.
        micro_batches: number of parts of a batch's rows; the gradients of the parts are summed.
        seed: of initial weights, dropout, random routing and the sampling of data; 0 to 2^31 - 1.
    """

    max_steps: PositiveInt = 100_000
    log_every: PositiveInt = 50
    eval_every: PositiveInt = 1000
    checkpoint_every: PositiveInt = 1000
    keep_checkpoints: PositiveInt = 3
    background_saves: bool = True
    keep_every_steps: PositiveInt | None = None
    keep_every_hours: PositiveFloat | None = None
    stall_seconds: PositiveFloat | None = 600.0
    patience: PositiveInt | None = None
    dev_bleu_sentences: NonNegativeInt = 0
    source_use_sentences: NonNegativeInt = 1000
    clip_norm: PositiveFloat | None = None
    skip_limit: PositiveInt = 10
    most_returns: NonNegativeInt = 2
    micro_batches: PositiveInt = 1
    seed: NonNegativeInt = 1


class Runtime(Protocol):
    """The part of a runtime that the loop uses; `compiled` is true after the first step."""

    compiled: bool

    def initialize(self, seed: int) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None: ...

    def train(self, batch: Mapping[str, np.ndarray]) -> NestedMap: ...

    def feed(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]: ...

    def count_not_finite(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]: ...


class Batches(Protocol):
    """The part of an input that the loop uses; `state` is that after the last returned batch."""

    def next_batch(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None: ...


class Recorder(NamedTuple):
    """Records the metrics of every step.

    Attributes:
        add: (step, its metrics), called once for each step, in order, when the loop waits for the
            device. After resuming from step n the next step is n + 1.
        save: called before each checkpoint is written.
    """

    add: Callable[[int, NestedMap], None]
    save: Callable[[], None]


class Evaluation(NamedTuple):
    """The result of an evaluation.

    Attributes:
        dev_loss: nats a token, lower is better.
        scalars: by TensorBoard tag.
        text: for the progress line.
        images: PNG by TensorBoard tag.
        warnings: lines to report.
    """

    dev_loss: float
    scalars: dict[str, float]
    text: str
    images: Mapping[str, bytes] = MappingProxyType({})
    warnings: Sequence[str] = ()


class TrainResult(NamedTuple):
    """The state of training.

    Attributes:
        step: number of steps taken.
        finished: false if a signal stopped training early.
        best_step, best_loss: of the best evaluation.
        signal: number of the signal that any process received; None without one.
    """

    step: int
    finished: bool
    best_step: int | None
    best_loss: float
    signal: int | None


def train(
    runtime: Runtime,
    batches: Batches,
    params: TrainParams,
    logdir: Path,
    *,
    summarize: Callable[[NestedMap], dict[str, float]],
    evaluate: Callable[[int], Evaluation | None],
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    process: Process = ALONE,
    recorder: Recorder | None = None,
    initialize: Callable[[], int] | None = None,
    started: Callable[[int], None] = lambda step: None,
) -> TrainResult:
    """Trains to params.max_steps, from the newest checkpoint in logdir if there is one.

    After SIGINT or SIGTERM the loop finishes the current step, saves, and returns. A resumed run
    takes the same steps as an uninterrupted one. If the input fails, a single process saves before
    it raises the error.

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
        recorder: records the metrics of each step.
        initialize: initializes the runtime where there is no checkpoint, and returns the number of
            steps taken; None draws all weights.
        started: called with the number of steps taken, before this run's first step, after the
            state is initialized or restored. Nothing in logdir is written before it.

    Raises:
        NotFiniteError: step after step is not finite; the last one is saved for a replay.
        FloatingPointError: the state is not finite; earlier checkpoints are finite.
        OSError: a checkpoint could not be written; earlier ones are unchanged.
    """
    loop = _Loop(runtime, batches, params, logdir, summarize, evaluate, report, process, recorder)
    with deferred() as received, loop.watchdog, loop.saver:
        return loop.run(received, initialize or loop.draw, started)


class _Loop:
    """The loop's state: metrics since the last progress line, and the best evaluation."""

    def __init__(
        self, runtime, batches, params, logdir, summarize, evaluate, report, process, recorder
    ):
        self.runtime, self.batches, self.params = runtime, batches, params
        self.summarize, self.evaluate, self.report = summarize, evaluate, report
        keep = Keep(params.keep_checkpoints, params.keep_every_steps, params.keep_every_hours)
        self.checkpoints = Checkpointer(logdir / "checkpoints", keep, process)
        self.saver = Saver(self.checkpoints, params.background_saves)
        self.watchdog = Watchdog(params.stall_seconds, report)
        self.goodput = Goodput(None if process.index else logdir / goodput.FILE)
        self.logdir = logdir
        self.recorder, self.interruption, self.process = recorder, Interruption(process), process
        self.step, self.saved_step, self.recorded_step = 0, None, 0
        self.best = NO_BEST
        self.metrics: list[NestedMap] = []
        self.skips = SkippedSteps(params.skip_limit, params.most_returns)
        self.counted = 0  # of self.metrics, whose skips are counted

    def draw(self) -> int:
        """Draws all weights."""
        self.runtime.initialize(self.params.seed)
        return 0

    def run(
        self,
        received: Callable[[], int | None],
        initialize: Callable[[], int],
        started: Callable[[int], None],
    ) -> TrainResult:
        """The loop itself."""
        p, signal = self.params, None
        self._start(initialize, self._restore)
        started(self.step)
        started_at = self.step
        events = None if self.process.index else self.logdir / "events"
        self.events = SummaryWriter(events, self.report)
        self.goodput.enter(goodput.STEPS)
        while self.step < p.max_steps and not self._out_of_patience():
            if signal := self.interruption.agreed(received()):
                break
            self._take_step()
            self.saver.check()
            last = self.step == p.max_steps
            log, evaluate, save = (
                last or self.step % every == 0
                for every in (p.log_every, p.eval_every, p.checkpoint_every)
            )
            if not (log or evaluate or save):
                continue
            self._count_skips()
            if self.skips.too_many:
                self._go_back(initialize)
                continue
            if log:
                self._log()
            if not last and (evaluate or save) and not self._may_save():
                self.report(
                    f"step {self.step}  neither evaluated nor saved: the last "
                    f"{self.skips.in_a_row} steps were not finite and were skipped"
                )
            elif evaluate:
                self._evaluate()
            elif save:
                self._save()
        finished = self.step >= p.max_steps or self._out_of_patience()
        if self._out_of_patience():
            self.report(
                f"No better dev loss in {self.best.evaluations_since} evaluations "
                f"(train.patience={p.patience}): training ends at step {self.step}."
            )
        if self.step != self.saved_step and (finished or self._may_save()):
            self._save()
        with self._phase(goodput.SAVING, "writing the last checkpoint"):
            self.saver.wait()
        self.goodput.saved(finished)
        self.events.scalars(self.step, self._goodput_scalars())
        self.events.close()
        if self.step > started_at:
            self.report(self.goodput.line())
        if not finished:
            where = "there" if self.saved_step == self.step else f"step {self.saved_step or 0}"
            self.report(f"Interrupted at step {self.step}; the same command resumes from {where}.")
        return TrainResult(
            self.step, finished, self.best.step, self.best.loss, signal or received()
        )

    def _take_step(self):
        with self._phase(goodput.INPUT, "waiting for the input"):
            batch = self._next_batch()
        compiled, start = self.runtime.compiled, time.monotonic()
        if not compiled:
            self.report("Compiling the step …")
        kind = goodput.STEPS if compiled else goodput.COMPILING
        with self._phase(kind, f"in step {self.step + 1}", watched=compiled):
            self.metrics.append(self.runtime.train(batch))
        self.batch = batch
        if not compiled:
            self.compiling = time.monotonic() - start
            self.report(f"Compiled in {self.compiling:.0f} s.")
        self.step += 1

    @contextlib.contextmanager
    def _phase(self, kind, text, watched=True):
        """Tells goodput and watchdog what a block does."""
        self.watchdog.enter(text, watched)
        with self.goodput.during(kind):
            yield
        self.watchdog.enter(f"after step {self.step}")

    def _goodput_scalars(self):
        shares = self.goodput.shares().items()
        return {f"goodput/{kind.replace(' ', '_')}": share for kind, share in shares}

    def _next_batch(self):
        try:
            return self.batches.next_batch()
        except Exception:
            # With several processes, others may be at a later step. A single process saves a
            # checkpoint.
            if self.process is ALONE and self.step > (self.saved_step or 0) and self._may_save():
                self._save()
                self.saver.wait()
                self.report(f"The input failed; step {self.step} is saved.")
            raise

    def _start(self, initialize, restore):
        checkpoint = self.checkpoints.resume(restore)
        self.clock, self.compiling = time.monotonic(), 0.0
        if checkpoint is None:
            self.step = initialize()
        else:
            self.step = self.saved_step = checkpoint.step
            self.best = checkpoint.best
            self.report(f"Resuming from step {self.step}.")
        self.recorded_step = self.clock_step = self.step

    def _go_back(self, initialize):
        """Returns to the last checkpoint, or to the start; the input does not return."""
        count, step = self.skips.in_a_row, self.step
        self.saver.wait()
        if self.skips.hopeless:
            self._give_up()
        self.report(
            f"The last {count} steps to step {step} were not finite and were skipped. Training "
            f"goes back to step {self.saved_step or 0} and goes on with other data."
        )
        self.metrics, self.counted = [], 0
        self.goodput.went_back()
        self._start(initialize, lambda checkpoint: self.runtime.restore(checkpoint.tensors))
        self.skips.went_back()

    def _give_up(self):
        """Saves the step for a replay and raises the diagnosis."""
        found = describe(self.runtime.count_not_finite(self.batch))
        state = self.runtime.state() | {"step": np.int64(self.step - 1)}
        batch = self.runtime.feed(self.batch)
        try:
            saved = save_for_replay(self.logdir, self.step - 1, state, batch, self.process)
            replay = f"It is saved in {saved}; lingvo-moe-replay finds the first operation."
        except (OSError, FloatingPointError) as error:  # the diagnosis matters more
            replay = f"It could not be saved for a replay: {error}"
        raise NotFiniteError(
            f"Training ends at step {self.step}: the last {self.skips.in_a_row} steps were not "
            f"finite, also after going back {self.skips.returns} times to step "
            f"{self.saved_step or 0}. In the last batch: {found}. {replay} {CURE}",
            self.step,
        )

    def _restore(self, checkpoint: Checkpoint):
        tensors = checkpoint.tensors
        self.runtime.restore(tensors)
        position = {name: tensors[name] for name in tensors if name.startswith(_INPUT)}
        self.batches.restore({n.removeprefix(_INPUT): np.asarray(t) for n, t in position.items()})

    def _out_of_patience(self):
        patience = self.params.patience
        return patience is not None and self.best.evaluations_since >= patience

    def _log(self):
        metrics = self._drain()
        if metrics is None:
            return
        scalars = {"skipped_steps": float(metrics.skipped_steps)}
        skipped = f"  skipped {metrics.skipped_steps:.0f}" if metrics.skipped_steps else ""
        elapsed, steps = time.monotonic() - self.clock, self.step - self.clock_step
        # The time left excludes the first step, which includes compiling, unless it is the only
        # one.
        seconds = max(elapsed - self.compiling, elapsed / steps)
        rate = steps / max(seconds, 1e-9)
        text = "no step was finite"
        if metrics.steps:
            scalars |= self.summarize(metrics)
            speed = scalars["tokens"] / max(seconds, 1e-9)
            text = f"loss {scalars['loss']:.3f}  {speed:,.0f} tokens/s"
            scalars |= {"steps_per_second": rate, "tokens_per_second": speed}
        self.clock, self.clock_step, self.compiling = time.monotonic(), self.step, 0.0
        eta = hours((self.params.max_steps - self.step) / rate)
        self.report(f"step {self.step}/{self.params.max_steps}  {text}{skipped}  ETA {eta}")
        points = {f"train/{tag}": value for tag, value in scalars.items()}
        self.events.scalars(self.step, points | self._goodput_scalars())

    def _count_skips(self):
        """Counts the skipped steps among the newest; waits for the device."""
        self.skips.add(bool(np.asarray(m.skipped_steps)) for m in self.metrics[self.counted :])
        self.counted = len(self.metrics)

    def _may_save(self):
        """Whether the newest step was finite; else the weights may be the cause."""
        self._count_skips()
        return not self.skips.in_a_row

    def _drain(self):
        """Sums of the metrics since the last call, as numpy, with the number of useful `steps`."""
        if not self.metrics:
            return None
        self._record()
        count = len(self.metrics)
        summed = self.metrics[0].map(lambda *xs: sum(np.asarray(x) for x in xs), *self.metrics[1:])
        self.metrics, self.counted = [], 0
        return NestedMap(summed, steps=count - round(float(summed.skipped_steps)))

    def _record(self):
        """Passes new steps to the recorder, without skipped ones."""
        if self.recorder is not None:
            for step, metrics in enumerate(self.metrics, self.step - len(self.metrics) + 1):
                if step > self.recorded_step and not np.asarray(metrics.skipped_steps):
                    self.recorder.add(step, metrics)
            self.recorded_step = self.step

    def _evaluate(self):
        start = time.monotonic()
        if self.metrics:
            self._log()
        with self._phase(goodput.EVALUATION, "evaluating", watched=False):
            evaluation = self.evaluate(self.step)
        if evaluation is not None:
            self.report(f"step {self.step}  {evaluation.text}")
            for line in evaluation.warnings:
                self.report(line)
            self.events.scalars(self.step, evaluation.scalars)
            for tag, png in evaluation.images.items():
                self.events.image(self.step, tag, png)
            if evaluation.dev_loss < self.best.loss:
                self.best = Best(self.step, evaluation.dev_loss)
            else:
                since = self.best.evaluations_since + 1
                self.best = self.best._replace(evaluations_since=since)
        self._save()
        self.clock += time.monotonic() - start  # evaluation is not training time

    def _save(self):
        if self.recorder is not None:
            self._record()
            self.recorder.save()
        state = {f"{_INPUT}{name}": value for name, value in self.batches.state().items()}
        with self._phase(goodput.SAVING, "saving"):
            self.saver.save(self.step, {**self.runtime.state(), **state}, self.best)
        self.goodput.saved()
        self.saved_step = self.step
        self.skips.saved()
