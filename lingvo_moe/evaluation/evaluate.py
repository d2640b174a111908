"""From translations to a report on disk.

    DIRECTORY/report.json                              every score
    DIRECTORY/delta_bleu.png                           the plot
    DIRECTORY/index.html                               both with sample translations, in one file
    DIRECTORY/hypotheses/SPLIT/PAIR.{src,hyp,ref}      what was scored

Such a directory also serves as the baseline of another evaluation.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from lingvo_moe.evaluation.hypotheses import hypotheses_path, read_hypotheses, write_hypotheses
from lingvo_moe.evaluation.page import write_page
from lingvo_moe.evaluation.plot import write_plot
from lingvo_moe.evaluation.report import Report, load_report, pool_unreliable, save_report
from lingvo_moe.evaluation.scores import (
    BOOTSTRAP_SAMPLES,
    PairOutput,
    PairScore,
    score_pair,
)

PLOT_FILE = "delta_bleu.png"
PAGE_FILE = "index.html"


def write_report(
    outputs: Sequence[PairOutput],
    directory: str | pathlib.Path,
    *,
    model: str,
    checkpoint_step: int | None,
    split: str,
    baselines: str | pathlib.Path | None = None,
    tokenizer: str | None = None,
    bootstrap_samples: int = BOOTSTRAP_SAMPLES,
) -> Report:
    """Scores translations and writes the report with its plot, page and texts.

    Args:
        outputs: the translations, an entry per pair.
        directory: to write to; made if missing, files of an earlier report overwritten.
        model: name of the model that translated.
        checkpoint_step: training steps behind its checkpoint; None if there are several models.
        split: as 'test'.
        baselines: the directory of an earlier report, or its report.json, to compare with.
            Pairs that it lacks have no ΔBLEU; p-values need the hypotheses beside it.
        tokenizer: sacreBLEU's name of a tokenizer for BLEU; None for each target's own.
        bootstrap_samples: resamples of a test set for a p-value.

    Raises:
        FileNotFoundError: if there is no report at `baselines`.
        ValueError: if there are no outputs or a pair twice; if the baselines are of another
            split, other pairs, other references or another tokenizer, or in the directory to be
            written.
    """
    pairs = [output.pair for output in outputs]
    if not pairs or len(set(pairs)) < len(pairs):
        raise ValueError(f"outputs must be of one or more different pairs, got {pairs}.")
    directory = pathlib.Path(directory)
    baseline_report = None
    baseline_hypotheses = {}
    if baselines is not None:
        _check_not_overwritten(baselines, directory)
        baseline_report = load_report(baselines, split=split)
        baseline_hypotheses = _baseline_hypotheses(baseline_report, baselines, outputs)

    options = {"tokenizer": tokenizer, "bootstrap_samples": bootstrap_samples}
    scores = [
        score_pair(output, baseline_hypotheses.get(output.pair), **options) for output in outputs
    ]
    if baseline_report is not None:
        scores = _with_reported_baselines(scores, baseline_report)
    unreliable = {score.pair for score in scores if not score.reliable}
    report = Report(
        model=model,
        checkpoint_step=checkpoint_step,
        split=split,
        pairs=scores,
        pooled=_score_pooled(outputs, unreliable, baseline_hypotheses, options),
        baseline_model=baseline_report and baseline_report.model,
    )
    directory.mkdir(parents=True, exist_ok=True)
    for output in outputs:
        write_hypotheses(directory, split, output)
    save_report(report, directory)
    write_plot([report], directory / PLOT_FILE)
    write_page(report, directory / PAGE_FILE, outputs, baseline_hypotheses, directory / PLOT_FILE)
    return report


def _check_not_overwritten(baselines: str | pathlib.Path, directory: pathlib.Path) -> None:
    path = pathlib.Path(baselines)
    home = path if path.is_dir() else path.parent
    if home.resolve() == directory.resolve():
        raise ValueError(
            f"The baselines are in {directory}, where the report is to be written. Choose another"
            " output directory."
        )


def _baseline_hypotheses(
    report: Report, baselines: str | pathlib.Path, outputs: Sequence[PairOutput]
) -> Mapping[str, Sequence[str]]:
    """pair -> the baseline's translations, for the pairs that have them beside the report."""
    path = pathlib.Path(baselines)
    home = path if path.is_dir() else path.parent
    known = {score.pair for score in report.pairs}
    if known.isdisjoint(output.pair for output in outputs):
        raise ValueError(
            f"The baselines of {path} are for {', '.join(sorted(known))}; none is for"
            f" {', '.join(output.pair for output in outputs)}. Name baselines of these pairs."
        )
    found = {}
    for output in outputs:
        if output.pair not in known:
            continue
        if not hypotheses_path(home, report.split, output.pair).exists():
            continue
        theirs = read_hypotheses(home, report.split, output.pair)
        if theirs.references != output.references:
            raise ValueError(
                f"{output.pair}: the baseline in {home} was scored on other references than these"
                f" ({len(theirs.references)} and {len(output.references)} lines). Evaluate both on"
                " the same data."
            )
        found[output.pair] = theirs.hypotheses
    return found


def _with_reported_baselines(scores: Sequence[PairScore], report: Report) -> list[PairScore]:
    """Fills in baseline BLEU from the report where its translations are not at hand."""
    reported = {score.pair: score for score in report.pairs}
    return [
        score
        if score.baseline_bleu is not None or score.pair not in reported
        else dataclasses.replace(score, baseline_bleu=_comparable(reported[score.pair], score).bleu)
        for score in scores
    ]


def _comparable(theirs: PairScore, ours: PairScore) -> PairScore:
    """The baseline's score, if it is of as many lines, scored the same way."""
    for name in ("test_examples", "signature"):
        if getattr(theirs, name) != getattr(ours, name):
            raise ValueError(
                f"{ours.pair}: {name} is {getattr(theirs, name)} for the baseline and"
                f" {getattr(ours, name)} here. BLEU compares only on one test set scored in one"
                " way. Evaluate both again."
            )
    return theirs


def _score_pooled(
    outputs: Sequence[PairOutput],
    unreliable: set[str],
    baseline_hypotheses: Mapping[str, Sequence[str]],
    options: Mapping[str, Any],
) -> list[PairScore]:
    """One score for all pairs of a target language that have too few lines each."""
    scores = []
    for pooled in pool_unreliable(outputs, unreliable):
        language = pooled.pair.rpartition("-")[2]
        group = [
            o.pair for o in outputs if o.pair in unreliable and o.pair.endswith(f"-{language}")
        ]
        complete = all(pair in baseline_hypotheses for pair in group)
        theirs = [line for pair in group for line in baseline_hypotheses.get(pair, ())]
        scores.append(score_pair(pooled, theirs if complete else None, **options))
    return scores
