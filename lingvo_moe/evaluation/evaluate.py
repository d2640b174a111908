"""Scores translations and writes a report.

    DIRECTORY/report.json                              every score
    DIRECTORY/delta_bleu.png                           the plot
    DIRECTORY/index.html                               both with sample translations, in one file
    DIRECTORY/hypotheses/SPLIT/PAIR.{src,hyp,ref}      the scored texts

Such a directory also serves as the baseline of another evaluation.
"""

import dataclasses
import pathlib
import types
from collections.abc import Mapping, Sequence

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.baselines import Baselines, write_hypotheses
from lingvo_moe.evaluation.metrics.base import Metric
from lingvo_moe.evaluation.plot import draw_plot
from lingvo_moe.evaluation.report import Report, format_model, page_parts, save_report
from lingvo_moe.evaluation.report_columns import measured
from lingvo_moe.evaluation.scores import (
    BOOTSTRAP_SAMPLES,
    PairOutput,
    PairScore,
    score_pair,
)
from lingvo_moe.reporting.page import document
from lingvo_moe.system.files import write_whole


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
    made_from: Mapping[str, str] = types.MappingProxyType({}),
    bootstrap_samples: int = BOOTSTRAP_SAMPLES,
) -> Report:
    """Scores translations and writes the report with its plot, page and texts.

    Args:
        outputs: the translations, an entry per pair.
        directory: made if missing; files of an earlier report are overwritten.
        model: name of the model that translated.
        checkpoint_step: training steps of its checkpoint; None if there are several models.
        split: such as 'test'.
        baselines: earlier reports to compare with. Pairs that they lack get no ΔBLEU. None for no
            comparison.
        pivot: the language through which zero-shot pairs were translated; None for none.
        chosen_tokenizers: pair -> sacreBLEU's name of a tokenizer for BLEU; None for the default of
            each target language.
        metrics: further scores; see metrics.base.prepare_metrics.
        made_from: name -> text, shown on the page: date, command, data, params.
        bootstrap_samples: resamples of a test set for a p-value.

    Raises ValueError: if the baselines are of other references, or in the directory to be written.
    """
    pairs = [output.pair for output in outputs]
    chosen = chosen_tokenizers or tokenizers.choose(pairs)
    if baselines is not None:
        baselines.check({output.pair: output.references for output in outputs}, directory)

    def score(output: PairOutput) -> PairScore:
        theirs, tokenizer = hypotheses[output.pair], chosen[output.pair]
        found = score_pair(output, theirs, tokenizer=tokenizer, bootstrap_samples=bootstrap_samples)
        of_metrics = {metric.column: float(metric.score(output)) for metric in metrics}
        return dataclasses.replace(found, measures=measured(output, tokenizer) | of_metrics)

    hypotheses = {pair: baselines.hypotheses(pair) if baselines else None for pair in pairs}
    report = Report(
        model=model,
        checkpoint_step=checkpoint_step,
        split=split,
        pairs=[score(output) for output in outputs],
        baseline_model=baselines.model if baselines else None,
        pivot=pivot,
        metrics={metric.column: metric.signature() for metric in metrics},
    )
    directory.mkdir(parents=True, exist_ok=True)
    for output in outputs:
        write_hypotheses(directory, split, output)
    plot = draw_plot(report)
    parts = page_parts(report, outputs, hypotheses, plot, made_from)
    write_whole(directory / "delta_bleu.png", plot)
    write_whole(directory / "index.html", document(format_model(report), parts))
    save_report(report, directory)
    return report
