"""A report as one self-contained HTML file: averages, every pair, the plot, samples."""

from collections.abc import Sequence

from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.evaluation.report import (
    Report,
    averages_table,
    matrix_table,
    notes,
    pairs_table,
)
from lingvo_moe.evaluation.scores import PairOutput, PairScore
from lingvo_moe.reporting.page import escape, image
from lingvo_moe.reporting.table import Table

_SAMPLES = 3
_THIRDS = "high, mid and low are thirds of the pairs by training data"


def page_parts(
    report: Report, outputs: Sequence[PairOutput], baselines: Baselines | None, plot: bytes
) -> list[str]:
    """The parts of the page as HTML.

    Args:
        report: the scores.
        outputs: the translations behind the scores, for samples.
        baselines: what the scores compare with, for its translations.
        plot: the PNG.
    """
    against = f", against {escape(report.baseline_model)}" if report.baseline_model else ""
    return [
        f"<p>{len(report.pairs)} language pairs, split {escape(report.split)}{against}.</p>",
        averages_table(report).to_html(_THIRDS, signed=("ΔBLEU",)),
        image(plot, "ΔBLEU per language pair"),
        "<h2>Language pairs</h2>",
        pairs_table(report).to_html(signed=("ΔBLEU",)),
        *(f'<p class="mark">{escape(note)}</p>' for note in notes(report)),
        _signatures(report),
        *_matrix(report),
        "<h2>Samples</h2>",
        *(
            _samples(output, baselines.hypotheses(output.pair) if baselines else None)
            for output in _sampled(report, outputs)
        ),
    ]


def _matrix(report: Report) -> list[str]:
    table = matrix_table(report)
    return ["<h2>BLEU by language</h2>", table.to_html("from rows into columns")] if table else []


def _signatures(report: Report) -> str:
    by_signature: dict[tuple[str, str], list[str]] = {}
    for s in report.pairs:
        by_signature.setdefault((s.signature, s.chrf_signature), []).append(s.pair)
    lines = [
        f"<p>BLEU <code>{escape(bleu)}</code>, chrF++ <code>{escape(chrf)}</code>"
        + (f" ({escape(', '.join(pairs))})" if len(by_signature) > 1 else "")
        + "</p>"
        for (bleu, chrf), pairs in by_signature.items()
    ]
    lines += [
        f"<p>{escape(column)} <code>{escape(signature)}</code></p>"
        for column, signature in report.metrics.items()
    ]
    return "".join(lines)


def _sampled(report: Report, outputs: Sequence[PairOutput]) -> list[PairOutput]:
    """The pairs with most, median and least training data."""
    order: list[PairScore] = list(report.pairs)
    chosen = {order[0].pair, order[len(order) // 2].pair, order[-1].pair}
    by_pair = {output.pair: output for output in outputs}
    return [by_pair[s.pair] for s in order if s.pair in chosen]


def _samples(output: PairOutput, baseline: Sequence[str] | None) -> str:
    rows = []
    for i in range(min(_SAMPLES, len(output.sources))):
        rows += [("source", output.sources[i]), ("translation", output.hypotheses[i])]
        rows += [("baseline", baseline[i])] if baseline is not None else []
        rows += [("nearest", output.nearest[i])] if output.nearest is not None else []
        rows += [("reference", output.references[i])]
    return f"<h3>{escape(output.pair)}</h3>{Table((), rows, texts=2).to_html()}"
