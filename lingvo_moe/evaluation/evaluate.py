"""Scores translations and writes a report.

    DIRECTORY/report.json                              every score
    DIRECTORY/delta_bleu.png                           the plot
    DIRECTORY/index.html                               both with sample translations, in one file
    DIRECTORY/hypotheses/SPLIT/PAIR.{src,hyp,ref}      the scored texts

Such a directory also serves as the baseline of another evaluation.
"""

import dataclasses
import pathlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.evaluation.columns import measured
from lingvo_moe.evaluation.hypotheses import write_hypotheses
from lingvo_moe.evaluation.metrics.base import Metric, score_of, signature_of
from lingvo_moe.evaluation.page import page_parts
from lingvo_moe.evaluation.plot import draw_plot
from lingvo_moe.evaluation.report import Report, format_model, save_report
from lingvo_moe.evaluation.scores import (
    BOOTSTRAP_SAMPLES,
    PairOutput,
    PairScore,
    pool,
    score_pair,
)
from lingvo_moe.reporting.page import write_page


def write_report(
    outputs: Sequence[PairOutput],
    directory: pathlib.Path,
    *,
    model: str,
    checkpoint_step: int | None,
    split: str,
    baselines: Baselines | None = None,
    pivot: str | None = None,
    chosen_tokenizers: Mapping[str, str] | None = None,
    metrics: Sequence[Metric] = (),
    bootstrap_samples: int = BOOTSTRAP_SAMPLES,
) -> Report:
    """Scores translations and writes the report with its plot, page and texts.

    Args:
        outputs: the translations, an entry per pair.
        directory: made if missing; files of an earlier report are overwritten.
        model: name of the model that translated.
        checkpoint_step: training steps of its checkpoint; None if there are several models.
        split: such as 'test'.
        baselines: earlier reports to compare with. Pairs that they lack get no ΔBLEU, and p-values
            need their hypotheses. None for no comparison.
        pivot: the language through which zero-shot pairs were translated; None for none.
        chosen_tokenizers: pair -> sacreBLEU's name of a tokenizer for BLEU; None for the default of
            each target language.
        metrics: further scores; see metrics.base.prepare_metrics.
        bootstrap_samples: resamples of a test set for a p-value.

    Raises:
        ValueError: if the baselines are of other
            references or another tokenizer, or in the directory to be written; if a metric cannot
            be computed.
    """
    pairs = [output.pair for output in outputs]
    chosen = chosen_tokenizers or tokenizers.choose(pairs)
    if baselines is not None:
        baselines.check_not_in(directory)
        baselines.check({output.pair: output.references for output in outputs}, chosen)
    scores = [
        _score(output, baselines, chosen[output.pair], metrics, bootstrap_samples)
        for output in outputs
    ]
    unreliable = [o for o, score in zip(outputs, scores, strict=True) if not score.reliable]
    report = Report(
        model=model,
        checkpoint_step=checkpoint_step,
        split=split,
        pairs=scores,
        pooled=_score_pooled(unreliable, baselines, chosen, metrics, bootstrap_samples),
        baseline_model=baselines.model if baselines else None,
        pivot=pivot,
        metrics={metric.column: signature_of(metric) for metric in metrics},
    )
    directory.mkdir(parents=True, exist_ok=True)
    for output in outputs:
        write_hypotheses(directory, split, output)
    plot = draw_plot([report])
    parts = page_parts(report, outputs, baselines, plot)
    write_page(directory, format_model(report), parts, {"delta_bleu": plot})
    save_report(report, directory)
    return report


def _score(
    output: PairOutput,
    baselines: Baselines | None,
    tokenizer: str,
    metrics: Sequence[Metric],
    samples: int,
) -> PairScore:
    """The score; without translations of the baseline its BLEU is taken from its report."""
    theirs = baselines.hypotheses(output.pair) if baselines else None
    score = score_pair(output, theirs, tokenizer=tokenizer, bootstrap_samples=samples)
    score = _add_measures(score, output, tokenizer, metrics)
    reported = baselines.score(output.pair) if baselines else None
    if theirs or not reported:
        return score
    return dataclasses.replace(score, baseline_bleu=reported.bleu)


def _score_pooled(
    outputs: Sequence[PairOutput],
    baselines: Baselines | None,
    chosen: Mapping[str, str],
    metrics: Sequence[Metric],
    samples: int,
) -> list[PairScore]:
    """One score for all pairs with too few lines that have the same target and tokenizer."""
    scores = []
    groups = defaultdict(list)
    for output in outputs:
        groups[output.pair.rpartition("-")[2], chosen[output.pair]].append(output)
    for group in (group for group in groups.values() if len(group) > 1):
        theirs = [baselines.hypotheses(output.pair) if baselines else None for output in group]
        pooled = pool(group)
        score = score_pair(
            pooled,
            [line for lines in theirs for line in lines or ()] if all(theirs) else None,
            tokenizer=chosen[group[0].pair],
            bootstrap_samples=samples,
        )
        scores.append(_add_measures(score, pooled, chosen[group[0].pair], metrics))
    return scores


def _add_measures(
    score: PairScore, output: PairOutput, tokenizer: str, metrics: Sequence[Metric]
) -> PairScore:
    found = {metric.column: score_of(metric, output) for metric in metrics}
    return dataclasses.replace(score, measures=measured(output, tokenizer) | found)
