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

from lingvo_moe.evaluation.hypotheses import hypotheses_path, read_hypotheses, write_hypotheses
from lingvo_moe.evaluation.page import write_page
from lingvo_moe.evaluation.plot import write_plot
from lingvo_moe.evaluation.report import Report, load_report, pool_unreliable, save_report
from lingvo_moe.evaluation.scores import (
    BOOTSTRAP_SAMPLES,
    PairOutput,
    PairScore,
    pool,
    score_pair,
)

PLOT_FILE = "delta_bleu.png"
PAGE_FILE = "index.html"


def write_report(
    outputs: Sequence[PairOutput],
    directory: str | pathlib.Path,
    *,
    model: str,
    checkpoint_step: int,
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
        checkpoint_step: training steps behind its checkpoint.
        split: as 'test'.
        baselines: the directory of an earlier report, or its report.json, to compare with.
            Pairs that it lacks have no ΔBLEU; p-values need the hypotheses beside it.
        tokenizer: sacreBLEU's name of a tokenizer for BLEU; None for each target's own.
        bootstrap_samples: resamples of a test set for a p-value.

    Raises:
        FileNotFoundError: if there is no report at `baselines`.
        ValueError: if there are no outputs or a pair twice; if the baselines are of another
            split or other references, or in the directory to be written.
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
