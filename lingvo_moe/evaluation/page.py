"""A report as one HTML file that needs no other: averages, every pair, the plot, samples."""

import pathlib
from collections.abc import Sequence

from lingvo_moe.core.files import write_whole
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.evaluation.markup import document, escape, header, image
from lingvo_moe.evaluation.report import (
    Averages,
    Report,
    format_model,
    format_p_value,
    format_pairs,
    format_score,
    shown_averages,
)
from lingvo_moe.evaluation.scores import PairOutput, PairScore

_SAMPLES = 3


def write_page(
    report: Report,
    path: str | pathlib.Path,
    outputs: Sequence[PairOutput],
    baselines: Baselines | None,
    plot: str | pathlib.Path,
) -> None:
    """Writes the page.

    Args:
        report: the scores.
        path: the HTML file to write.
        outputs: the translations behind the scores, for samples.
        baselines: what the scores compare with, for its translations.
        plot: the PNG to put in.
    """
    title = format_model(report)
    against = f" against {escape(report.baseline_model)}" if report.baseline_model else ""
    parts = [
        f"<p>{len(report.pairs)} language pairs, split {escape(report.split)}{against}.</p>",
        _averages(report),
        image(pathlib.Path(plot).read_bytes(), "ΔBLEU per language pair"),
        _pairs(report),
        _signatures(report),
        "<h2>Samples</h2>",
        *(
            _samples(output, baselines and baselines.hypotheses(output.pair))
            for output in _sampled(report, outputs)
        ),
    ]
    write_whole(pathlib.Path(path), document(title, parts))


def _averages(report: Report) -> str:
    rows = [
        f"<tr><td>{escape(name)}</td><td>{format_pairs(average)}</td>{_scores(average)}"
        f"<td>{format_score(average.chrf)}</td></tr>"
        for name, average in shown_averages(report).items()
    ]
    head = header("average over", "pairs", "BLEU", "baseline", "ΔBLEU", "chrF++")
    caption = "<caption>high, mid and low are thirds of the pairs by training data</caption>"
    return f"<table>{caption}{head}{''.join(rows)}</table>"


def _pairs(report: Report) -> str:
    rows = [
        f"<tr><td>{escape(s.pair)}</td><td>{s.train_examples:,}</td>"
        f"<td>{s.test_examples:,}{'' if s.reliable else '<span class=mark>?</span>'}</td>"
        f"{_scores(s)}<td>{format_p_value(s)}</td><td>{format_score(s.chrf)}</td></tr>"
        for s in (*report.pairs, *report.pooled)
    ]
    head = header("pair", "train", "test", "BLEU", "baseline", "ΔBLEU", "p", "chrF++")
    notes = (
        '<p class="mark">* p &lt; 0.05, paired bootstrap test. ? too few test lines for a score of '
        "that pair alone; such pairs are scored once more pooled, as *-TARGET.</p>"
    )
    return f"<h2>Language pairs</h2><table>{head}{''.join(rows)}</table>{notes}"


def _scores(score: PairScore | Averages) -> str:
    delta = score.delta_bleu
    kind = "" if not delta else "better" if delta > 0 else "worse"
    return (
        f"<td>{format_score(score.bleu)}</td><td>{format_score(score.baseline_bleu)}</td>"
        f'<td class="{kind}">{format_score(delta, signed=True)}</td>'
    )


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
    return "".join(lines)


def _sampled(report: Report, outputs: Sequence[PairOutput]) -> list[PairOutput]:
    """The pairs with most, middling and least training data."""
    order: list[PairScore] = list(report.pairs)
    chosen = {order[0].pair, order[len(order) // 2].pair, order[-1].pair}
    by_pair = {output.pair: output for output in outputs}
    return [by_pair[s.pair] for s in order if s.pair in chosen]


def _samples(output: PairOutput, baseline: Sequence[str] | None) -> str:
    rows = []
    for i in range(min(_SAMPLES, len(output.sources))):
        lines = [("source", output.sources[i]), ("translation", output.hypotheses[i])]
        lines += [("baseline", baseline[i])] if baseline is not None else []
        lines += [("reference", output.references[i])]
        rows += [f'<tr><td class="who">{w}</td><td>{escape(t)}</td></tr>' for w, t in lines]
    return f'<h3>{escape(output.pair)}</h3><table class="samples">{"".join(rows)}</table>'
