"""Training a translation model end to end."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.config.params import to_fields
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import Part, Prefetcher, TrainInput
from lingvo_moe.evaluation.report_columns import length_ratio, length_warnings
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.evaluation.tokenizers import bleu_of_languages, chrf_of_languages
from lingvo_moe.flexmoe.rebalance import Rebalanced
from lingvo_moe.flexmoe.scheduler import Scheduler
from lingvo_moe.inference.fit import (
    bounded,
    dev_sample,
    fit_penalties,
    is_fitted,
    translate_and_fit,
)
from lingvo_moe.inference.translator import Translator
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.jobs.hours import steps_in
from lingvo_moe.jobs.initial import initialize
from lingvo_moe.jobs.source_use import SourceUse, SplitBatches, add_metrics, evaluate_batches
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system import lock
from lingvo_moe.system.files import write_whole
from lingvo_moe.system.progress import lossy, report
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.model_json import FILE
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import first_steps, to_table
from lingvo_moe.tasks.routing_metrics import max_vio
from lingvo_moe.tasks.translation import RuntimeFn, TranslationTask
from lingvo_moe.training.loop import CURE, Evaluation, TrainResult, train
from lingvo_moe.training.process import ALONE, Process
from lingvo_moe.training.signals import Stopped
from lingvo_moe.training.step import TrainStep

ORIGINS = "init.txt"  # in a logdir: what the initial weights were made of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """The arguments of a training run.

    Attributes:
        model: a registered model's name, or any name if params are given.
        params: of the model; None for those of the registered model.
        overrides: `--set` texts.
        dataset: prepared data.
        logdir: directory for checkpoints and events; for baselines it holds a logdir for each pair.
        make_runtime: makes the runtime of the steps.
        report: takes each line of progress.
        process: this process among those that train together; they share logdir.
        make_scheduler: task -> the scheduler that moves replicas of experts between devices, with
            the dispatcher VExperts; None to move none.
        hours: of the run; in a new logdir it sets train.max_steps, see jobs.hours. None for
            train.max_steps of the params.
    """

    model: str
    params: TranslationParams | None = None
    overrides: Sequence[str] = ()
    dataset: Dataset
    logdir: Path
    make_runtime: RuntimeFn
    report: Callable[[str], None] = report
    process: Process = ALONE
    make_scheduler: Callable[[TranslationTask], Scheduler] | None = None
    hours: float | None = None


def train_step(task: TranslationTask) -> TrainStep:
    """The step that a runtime compiles.

    Raises:
        ValueError: the schedule ends before train.max_steps, train.micro_batches does not divide
            the rows, or the tokens do not divide into groups.
    """
    params = task.params
    max_steps, rows = params.train.max_steps, params.input.batch_size
    if rows % params.train.micro_batches:
        raise ValueError(
            f"input.batch_size={rows} rows cannot be divided into train.micro_batches="
            f"{params.train.micro_batches}; change one of them."
        )
    params.check_groups()
    schedule = params.optimizer.schedule.over(max_steps)
    if (end := schedule.end) is not None and end < max_steps:
        raise ValueError(
            f"train.max_steps={max_steps} is beyond step {end}, where the schedule's learning "
            f"rate ends at 0; pass --set=optimizer.schedule.total_steps={max_steps}."
        )
    return TrainStep(
        task=task,
        optimizer=dataclasses.replace(params.optimizer, schedule=schedule),
        clip_norm=params.train.clip_norm,
        micro_batches=params.train.micro_batches,
        late_sums=params.sharding.late_sums,
        seed=params.train.seed,
        rungs=task.rungs,
    )


def train_model(job: TrainingJob) -> TrainResult:
    """Trains a registered model on a dataset, or resumes from the newest checkpoint of logdir.

    Raises:
        ValueError: logdir, dataset and model do not fit together, another process trains in
            logdir, processes that train together differ, or there are no VExperts to move.
    """
    process = job.process
    with contextlib.nullcontext() if process.index else lock.hold(job.logdir):
        model_dir = ModelDir.for_training(
            job.logdir, job.model, job.overrides, job.dataset, job.params
        )
        if job.hours is not None and not (job.logdir / FILE).exists():
            model_dir = _with_hours(job, model_dir)
        elif job.hours is not None:
            steps = model_dir.params.train.max_steps
            job.report(f"train.max_steps={steps} stays: hours sets it only in a new logdir.")
        process.check_equal((model_dir.data, sorted(to_fields(model_dir.params).items())))
        task = model_dir.task
        runtime = job.make_runtime(task, train_step(task))
        scheduler = _scheduler(job, task)
        mesh = getattr(runtime, "mesh", None)
        process.check_equal((str(mesh), scheduler))
        if mesh is not None:
            task.params.check_mesh(mesh, task.params.sharding.compute_rules(mesh))
        if scheduler is not None:
            runtime = Rebalanced(runtime, task.placements, scheduler)
        return run_training(model_dir, job.dataset, runtime, job.report, process)


def _with_hours(job, model_dir):
    """A new logdir whose number of steps fits the job's hours."""
    if any(text.partition("=")[0].strip() == "train.max_steps" for text in job.overrides):
        raise ValueError("hours and train.max_steps both set the number of steps; give one.")
    job.report(f"Measuring how many steps fit {job.hours:g} hours: one to three minutes …")
    task = model_dir.task
    runtime = job.make_runtime(task, train_step(task))
    chosen = steps_in(job.hours, model_dir, job.dataset, runtime, job.process)
    overrides = [*job.overrides, *(f"{one.path}={one.value}" for one in chosen)]
    made = ModelDir.for_training(job.logdir, job.model, overrides, job.dataset, job.params)
    return dataclasses.replace(made, chosen=(*chosen, *made.chosen))


def _scheduler(job, task):
    """The scheduler that moves experts; None if there is none."""
    if job.make_scheduler is None:
        return None
    if not task.placements:
        raise ValueError(
            'Only VExperts can move; pass --set="model.moe.training=VExperts(devices=8, groups=8, '
            'slots_per_device=2)" or the like.'
        )
    return job.make_scheduler(task)


def run_training(
    model_dir: ModelDir, dataset: Dataset, runtime, report, process: Process = ALONE
) -> TrainResult:
    """As `train_model`, with a given logdir and compiled runtime.

    The logdir is written after the dataset and the checkpoint to resume from have been checked.

    Raises:
        Stopped: Ctrl-C, SIGTERM or SIGHUP stopped the training, in all processes after the same
            step, which is saved.
    """
    params, report = model_dir.params, lossy(report)
    rows = runtime.batch_rows(params.input.batch_size)
    part = Part.of(rows, process.index, params.input.num_virtual_shards)
    source = TrainInput(dataset, params.input, params.train.seed, part)
    layers = model_dir.task.moe_layers
    evaluator = _Evaluator(model_dir, dataset, runtime, process)
    for line in evaluator.warnings():
        report(line)
    origins = ""

    def initial() -> None:
        nonlocal origins
        origins = initialize(model_dir, runtime, process, report)

    def begin(step: int) -> None:
        """The first process writes the logdir, the others wait."""
        if step < params.train.max_steps:
            source.check()  # an input without batches is an error before anything is written
            table = to_table(model_dir.chosen).to_text() if model_dir.chosen else ""
            for line in table.splitlines():
                report(line)
        if not process.index:
            model_dir.save()
            if origins:
                write_whole(model_dir.path / ORIGINS, origins)
        process.minimum(0)

    with Prefetcher(source) as batches:
        result = train(
            runtime,
            batches,
            params.train,
            model_dir.path,
            summarize=lambda metrics: summarize(
                check_no_lost_choices(metrics, params), model_dir.pairs, layers
            ),
            evaluate=evaluator,
            initialize=initial,
            started=begin,
            report=report,
            process=process,
        )
    if source.skipped:
        report(f"{source.skipped} drawn examples were longer than a row and left out.")
    if result.signal:
        raise Stopped(result.signal)
    _fit_best(model_dir, dataset, runtime, report, process, result)
    return result


def _fit_best(model_dir, dataset, runtime, report, process, result):
    """Fits the length penalties of the checkpoint that is used after training, if it can."""
    step = result.step if result.best_step is None else result.best_step
    translator = Translator.of(model_dir, runtime.translate)
    if not model_dir.has_penalties(step) and is_fitted(model_dir, translator):
        translator, step = load_translator(model_dir, runtime)
        first = not process.index
        fit_penalties(model_dir, translator, dataset, step, report, writes=first)


def check_no_lost_choices(metrics: NestedMap, params: TranslationParams) -> NestedMap:
    """Checks that a model without a capacity computed every choice; returns the metrics.

    Args:
        metrics: as for `summarize`.
        params: the model's.

    Raises:
        RuntimeError: some choices were not computed.
    """
    moe = params.model.moe
    if moe and moe.training.capacity_factor is None and moe.gating.batch_independent:
        lost = metrics.pair_dropped.sum() + np.sum(metrics.get("lost", 0.0))
        if lost:
            raise RuntimeError(
                f"{lost:.0f} choices of experts were not computed, though there is no capacity: an "
                f"error of {type(moe.training).__name__}. Train with another policy."
            )
    return metrics


def summarize(metrics: NestedMap, pairs: Sequence[str], layers: Sequence[str]) -> dict[str, float]:
    """Scalars for progress lines and TensorBoard, from sums over some steps.

    Args:
        metrics: sums of a TranslationTask's metrics, numpy, with `steps`, the number of steps.
        pairs: names of the pairs.
        layers: names of the MoE layers.

    Returns:
        "loss" (nats per target token), "tokens", "grad_norm", "learning_rate", "loss/PAIR" for each
        pair that was seen; with rungs "rung" and "retries" (see training.ladder), means over steps;
        for MoE models "aux_loss", "z_loss", "pair_drop_rate/PAIR" over all layers, and for each
        MoE layer "drop_rate/LAYER", "lost/LAYER" (choices that a dropless dispatcher did not
        compute: 0), "capacity/LAYER" (C, choices that an expert accepts from a group),
        "entropy/LAYER" (nats), "unused/LAYER" (experts without a token, per step), "max_vio/LAYER"
        (the busiest expert's choices over the mean, minus 1, per step; 0 is balance),
        "importance_max/LAYER" (the best scored expert's share times E; 1 is balance),
        "load/LAYER/EXPERT" and, if there is one, "shared_gate/LAYER"; where experts move also
        "balance_ratio/LAYER", "moves/LAYER", "move_seconds/LAYER" and
        "move_seconds_predicted/LAYER", means over steps.
    """
    tokens = float(metrics.tokens)
    scalars = {"loss": float(metrics.nll) / max(tokens, 1.0), "tokens": tokens}
    for name in ("grad_norm", "learning_rate", "rung", "retries"):
        if name in metrics:
            scalars[name] = float(metrics[name]) / metrics.steps
    for pair, nll, count in zip(pairs, metrics.pair_nll, metrics.pair_tokens, strict=True):
        if count:
            scalars[f"loss/{pair}"] = float(nll / count)
    if layers:
        scalars |= _summarize_experts(metrics, tokens, layers)
        wanted, dropped = metrics.pair_wanted.sum(axis=0), metrics.pair_dropped.sum(axis=0)
        for pair, lost, count in zip(pairs, dropped, wanted, strict=True):
            if count:
                scalars[f"pair_drop_rate/{pair}"] = float(lost / count)
    return scalars


def _summarize_experts(metrics, tokens, layers):
    scalars = {name: float(metrics[name]) / tokens for name in ("aux_loss", "z_loss")}
    for row, layer in enumerate(layers):
        num_experts = round(float(metrics.num_experts[row] / tokens))
        wanted, dropped = (metrics[name][row].sum() for name in ("pair_wanted", "pair_dropped"))
        scalars[f"drop_rate/{layer}"] = float(dropped / wanted) if wanted else 0.0
        for name in ("capacity", "entropy", "shared_gate"):
            if name in metrics:
                scalars[f"{name}/{layer}"] = float(metrics[name][row]) / tokens
        for name in (
            "max_vio",
            "unused",
            "lost",
            "balance_ratio",
            "moves",
            "move_seconds",
            "move_seconds_predicted",
        ):
            if name in metrics:
                scalars[f"{name}/{layer}"] = float(metrics[name][row]) / metrics.steps
        load, importance = (
            metrics[name][row, :num_experts] / tokens for name in ("load", "importance")
        )
        scalars[f"importance_max/{layer}"] = float(importance.max() * num_experts)
        for expert, share in enumerate(load):
            scalars[f"load/{layer}/{expert}"] = float(share)
    return scalars


class _Evaluator:
    """Dev loss, source use and BLEU on samples of dev, of the runtime's weights.

    Every process takes part; the first one writes the RoutingRecord.
    """

    def __init__(self, model_dir, dataset, runtime, process):
        params, self._process = model_dir.params, process
        self._runtime, self._model_dir, self._pairs = runtime, model_dir, model_dir.pairs
        self._dev = SplitBatches.of(dataset, params.input, params.train.source_use_sentences)
        self._sample = dev_sample(model_dir, dataset, params.train.dev_bleu_sentences)
        self._translator = Translator.of(model_dir, runtime.translate)
        self._fits = bool(self._sample) and is_fitted(model_dir, self._translator)
        if self._fits:
            self._translator = bounded(self._translator, dataset)
        if self._sample:
            model_dir.task.check_request(self._translator.request)  # an error before the start
        elif params.train.best_by.needs_translations:
            raise ValueError(
                f"train.best_by={params.train.best_by} compares translations of dev, and "
                f"{dataset.directory} has no dev lines of pairs that the model is trained on. "
                f"Prepare data with dev lines, or train in a new logdir with "
                f'--set="train.best_by=DevLoss()", which then uses the last checkpoint.'
            )

    def warnings(self) -> list[str]:
        """Warnings: there are no dev lines to evaluate."""
        if self._dev.sampled or self._dev.rest:
            return []
        patience = self._model_dir.params.train.patience
        ends = f", and train.patience={patience} has no effect" if patience else ""
        return [
            f"Warning: there are no dev lines, or all are longer than a row, so the last "
            f"checkpoint is used after training{ends}.",
        ]

    def __call__(self, step: int) -> Evaluation | None:
        sampled, foreign, rest = (evaluate_batches(self._runtime, part) for part in self._dev)
        total = add_metrics([metrics for metrics in (sampled, rest) if metrics])
        if not total:
            return None
        loss = float(total.nll) / float(total.tokens)
        scalars = {"dev/loss": loss}
        for pair, nll, count in zip(self._pairs, total.pair_nll, total.pair_tokens, strict=True):
            if count:
                scalars[f"dev/loss/{pair}"] = float(nll / count)
        layers = self._model_dir.task.moe_layers
        if layers:
            balance = max_vio(total.choices, self._model_dir.task.layer_experts).numpy()
            scalars |= {f"dev/max_vio/{y}": float(b) for y, b in zip(layers, balance, strict=True)}
        sure = total.pair_confidence if layers else 0.0
        finite = math.isfinite(loss) and bool(np.all(np.isfinite(sure)))
        if layers and finite and not self._process.index:
            record = RoutingRecord.of_metrics(total, layers, self._pairs)
            record.save(self._model_dir.routing_path)
        text, warnings = f"dev loss {loss:.3f}", []
        if sampled:
            use = SourceUse.of(sampled, foreign, self._pairs)
            scalars |= use.scalars()
            text += f"  source use {use.overall:z.2f}"
            warnings = use.warnings() if finite and self._is_due(step) else []
        if not finite:
            warnings = [
                f"Warning: the evaluation at step {step} has values that are not finite. {CURE}"
            ]
        if self._sample:
            fitted, texts = translate_and_fit(self._translator, self._sample, self._fits)
            scalars |= {"dev/bleu": bleu_of_languages(texts), "dev/chrf": chrf_of_languages(texts)}
            text += f"  dev BLEU {scalars['dev/bleu']:.1f}  chrF++ {scalars['dev/chrf']:.1f}"
            ratios = {language: length_ratio(*both) for language, *both in texts}
            scalars |= {f"dev/length_ratio/{name}": ratio for name, ratio in ratios.items()}
            warnings += length_warnings(ratios) if self._is_due(step) else []
            if self._fits and not self._process.index:
                self._model_dir.save_penalties(step, fitted)
        return Evaluation(scalars, text, warnings)

    def _is_due(self, step):
        """Whether low source use gives a warning: once a model should use its sources."""
        return step >= min(first_steps(len(self._pairs)), self._model_dir.params.train.max_steps)
