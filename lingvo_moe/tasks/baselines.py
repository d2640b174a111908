"""Bilingual baselines: a model for each pair, trained and scored, for comparison.

DIRECTORY/PAIR          the logdir of a pair's model
DIRECTORY/MODEL/PAIR    the same, where each pair has the best of several models
DIRECTORY/report        their report, which `evaluate` compares with
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from lingvo_moe.core import lock
from lingvo_moe.core.files import check_output, new_directory
from lingvo_moe.evaluation.baselines import IN_OUTPUT
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import Report
from lingvo_moe.tasks.evaluation import load_translator, references_of, translate_split
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import TrainingJob, run_training, train_step
from lingvo_moe.tasks.translator import Translator
from lingvo_moe.training.signals import exit_code

MAKER = "lingvo-moe-baselines"


def train_baselines(
    jobs: Sequence[TrainingJob], pairs: Sequence[str] = (), split: str = "test"
) -> Report:
    """Trains and scores a bilingual model for each pair; the same call resumes.

    With several jobs each pair is trained with the model of each, and the one with the lowest dev
    loss is scored. All arguments are checked before the training starts. An earlier report is
    replaced.

    Args:
        jobs: what to train; they differ in the model, and their logdir is the DIRECTORY above.
        pairs: to train; () for all with training examples and lines in the split.
        split: to score on, "dev" or "test".

    Raises:
        ValueError, OSError: an unknown or repeated pair, one without training examples, no lines
            in the split, models whose dev losses cannot be compared, files in DIRECTORY/report that
            this did not make, or as `train_model`.
        SystemExit: a signal stopped the training.
    """
    dataset, report, output = jobs[0].dataset, jobs[0].report, jobs[0].logdir / IN_OUTPUT
    check_output(output, MAKER, overwrite=True)
    pairs = pairs or [pair.name for pair in dataset.pairs if pair.examples.get("train")]
    pairs = list(references_of(dataset, split, pairs, report))
    names, several = [job.model for job in jobs], len(jobs) > 1
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"--model must name a model once; repeated: {', '.join(repeated)}.")
    if several:
        jobs = [dataclasses.replace(job, logdir=job.logdir / job.model) for job in jobs]
    found = [_check(job, pairs) for job in jobs]  # errors must come before hours of training
    if several:
        _check_comparable(jobs, found, pairs)
    losses = [_train(job, pairs, f"{job.model} " if several else "") for job in jobs]
    chosen = {pair: min(range(len(jobs)), key=lambda i: losses[i][pair]) for pair in pairs}
    outputs = translate_split(_translators(jobs, chosen), dataset, split, report)
    outputs = [
        dataclasses.replace(one, train_examples=_trained_on(jobs[chosen[one.pair]], one.pair))
        for one in outputs
    ]
    if several:
        _report_choice(names, losses, chosen, report)
        outputs = [dataclasses.replace(one, model=names[chosen[one.pair]]) for one in outputs]
    model = f"best of {', '.join(names)}" if several else names[0]
    with new_directory(output, MAKER, overwrite=True) as directory:
        return write_report(outputs, directory, model=model, checkpoint_step=None, split=split)


def _report_choice(names, losses, chosen, report):
    for pair, i in chosen.items():
        tried = (f"{name} {loss[pair]:.3f}" for name, loss in zip(names, losses, strict=True))
        report(f"{pair}: {names[i]} is chosen by dev loss ({', '.join(tried)})")


def _model_dir(job, pair):
    overrides = [*job.overrides, f"input.pairs=({pair!r},)"]
    return ModelDir.for_training(job.logdir / pair, job.model, overrides, job.dataset, job.params)


def _check(job, pairs):
    """Checks that every logdir can be trained in; returns the params of the last."""
    for pair in pairs:
        params = _model_dir(job, pair).params
        params.input.curriculum(job.dataset)
    return params


def _trained_on(job, pair) -> int:
    """Number of sentence pairs of all corpora that the model of a pair was trained on."""
    return _model_dir(job, pair).params.input.curriculum(job.dataset).examples[pair]


def _check_comparable(jobs, params, pairs):
    """Raises ValueError if the best model of a pair cannot be chosen by dev loss."""
    lengths = [(one.input.source_length, one.input.target_length) for one in params]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{', '.join(job.model for job in jobs)} have rows of {', '.join(map(str, lengths))}"
            " source and target tokens. Longer dev lines are skipped, so their dev losses are over"
            " different lines and cannot be compared. Pass"
            f" --set=input.source_length={max(lengths)[0]}"
            f" --set=input.target_length={max(length for _, length in lengths)}."
        )
    if without := [p for p in pairs if not jobs[0].dataset.pair(p).examples.get("dev")]:
        raise ValueError(
            f"The best of several models is chosen by dev loss; no dev lines: {', '.join(without)}."
            " Choose other pairs with --pairs, or give one --model."
        )


def _train(job, pairs, label) -> dict[str, float]:
    """Trains the unfinished models under job.logdir/PAIR; returns their best dev losses by pair.

    All pairs share the compiled step: only the data and the initial state change. Lines of progress
    begin with the label.
    """
    runtime, losses = None, {}
    for i, pair in enumerate(pairs):
        prefix = f"[{label}{i + 1}/{len(pairs)} {pair}] "
        with lock.hold(job.logdir / pair):
            model_dir = _model_dir(job, pair)
            runtime = runtime or job.make_runtime(model_dir.task, train_step(model_dir.task))
            result = run_training(
                model_dir,
                job.dataset,
                runtime,
                lambda line, prefix=prefix: job.report(prefix + line),
                input_workers=job.input_workers,
            )
        if result.signal:
            sys.exit(exit_code(result.signal))
        losses[pair] = result.best_loss
    return losses


def _translators(jobs, chosen) -> Iterator[tuple[str, Translator]]:
    """(pair, its translator); the pairs of a job use one runtime, one after another."""
    runtimes: dict[int, Any] = {}
    for pair, i in chosen.items():
        model_dir = ModelDir.open(jobs[i].logdir / pair)
        if i not in runtimes:
            runtimes[i] = jobs[i].make_runtime(model_dir.task, None)
        yield pair, load_translator(model_dir, runtimes[i])[0]
