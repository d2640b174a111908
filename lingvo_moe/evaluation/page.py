"""A report as one HTML file that needs no other: averages, every pair, the plot, samples."""

import base64
import html
import pathlib
from collections.abc import Mapping, Sequence

from lingvo_moe.evaluation.report import (
    Averages,
    Report,
    format_model,
    format_p_value,
    format_score,
    shown_averages,
)
from lingvo_moe.evaluation.scores import PairOutput, PairScore

_SAMPLES = 3
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } caption { text-align: left; opacity: .7; }
th, td { padding: .18rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.better { color: #1a7f37; } .worse { color: #c03221; }
.samples td { text-align: left; vertical-align: top; } .who { opacity: .65; }
img { max-width: 100%; background: white; border-radius: 4px; }
code { font-size: .85em; } .mark { opacity: .65; }
"""


def write_page(
    report: Report,
    path: str | pathlib.Path,
    outputs: Sequence[PairOutput],
    baseline_hypotheses: Mapping[str, Sequence[str]],
    plot: str | pathlib.Path,
) -> None:
    """Writes the page.

    Args:
        report: the scores.
        path: the HTML file to write.
        outputs: the translations behind the scores, for samples.
        baseline_hypotheses: pair -> the baseline's translations, where known.
        plot: the PNG to put in.
    """
    picture = base64.b64encode(pathlib.Path(plot).read_bytes()).decode("ascii")
    title = format_model(report)
    against = f" against {_escape(report.baseline_model)}" if report.baseline_model else ""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_escape(title)}</h1>",
        f"<p>{len(report.pairs)} language pairs, split {_escape(report.split)}{against}.</p>",
        _averages(report),
        f'<p><img alt="ΔBLEU per language pair" src="data:image/png;base64,{picture}"></p>',
        _pairs(report),
        _signatures(report),
        "<h2>Samples</h2>",
        *(_samples(o, baseline_hypotheses.get(o.pair)) for o in _sampled(report, outputs)),
        "</body></html>",
    ]
    pathlib.Path(path).write_text("\n".join(parts) + "\n", encoding="utf-8")


def _escape(text: str) -> str:
    return html.escape(str(text))


def _averages(report: Report) -> str:
    rows = [
        f"<tr><td>{_escape(name)}</td><td>{average.pairs}</td>{_scores(average)}"
        f"<td>{format_score(average.chrf)}</td></tr>"
        for name, average in shown_averages(report).items()
    ]
    header = _header("average over", "pairs", "BLEU", "baseline", "ΔBLEU", "chrF++")
    caption = "<caption>high, mid and low are thirds of the pairs by training data</caption>"
    return f"<table>{caption}{header}{''.join(rows)}</table>"


def _pairs(report: Report) -> str:
    rows = [
        f"<tr><td>{_escape(s.pair)}</td><td>{s.train_examples:,}</td>"
        f"<td>{s.test_examples:,}{'' if s.reliable else '<span class=mark>?</span>'}</td>"
        f"{_scores(s)}<td>{format_p_value(s)}</td><td>{format_score(s.chrf)}</td></tr>"
        for s in (*report.pairs, *report.pooled)
    ]
    header = _header("pair", "train", "test", "BLEU", "baseline", "ΔBLEU", "p", "chrF++")
    notes = (
        '<p class="mark">* p &lt; 0.05, paired bootstrap test. ? too few test lines for a score of '
        "that pair alone; such pairs are scored once more pooled, as *-TARGET.</p>"
    )
    return f"<h2>Language pairs</h2><table>{header}{''.join(rows)}</table>{notes}"


def _header(*names: str) -> str:
    return "<tr>" + "".join(f"<th>{_escape(name)}</th>" for name in names) + "</tr>"


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
        f"<p>BLEU <code>{_escape(bleu)}</code>, chrF++ <code>{_escape(chrf)}</code>"
        + (f" ({_escape(', '.join(pairs))})" if len(by_signature) > 1 else "")
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
        rows += [f'<tr><td class="who">{w}</td><td>{_escape(t)}</td></tr>' for w, t in lines]
    return f'<h3>{_escape(output.pair)}</h3><table class="samples">{"".join(rows)}</table>'
