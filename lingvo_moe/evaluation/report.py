"""The report of an evaluation: scores of every pair, averages, and their JSON and table.

Pairs are in the order of the GShard paper's Figure 6 (arXiv 2006.16668): most training data first.
"""

import dataclasses
import itertools
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from lingvo_moe.config.fields import Params
from lingvo_moe.evaluation.report_columns import MEASURES, SCORES, Column, shown
from lingvo_moe.evaluation.scores import PairOutput, PairScore
from lingvo_moe.reporting.page import escape, image
from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import check_file_name, read_json, write_whole
from lingvo_moe.system.lines import printable

REPORT_FILE = "report.json"
ZERO_SHOT = "°"  # marks pairs without training data

# Names that a Metric's column cannot have.
TAKEN = ("pair", "train", "test", "model", *(n for c in SCORES + MEASURES for n in (c.name, c.key)))
_DERIVED = ("delta_bleu", "reliable")  # properties of a score, written for readers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Averages:
    """Unweighted means over the same pairs of a group; None without such scores."""

    pairs: int  # number of pairs: those of the group that have a baseline, or all if none has one
    of: int  # number of pairs of the group
    bleu: float | None  # mean BLEU
    baseline_bleu: float | None  # mean BLEU of the baselines
    delta_bleu: float | None  # mean ΔBLEU
    chrf: float | None  # mean chrF++
    # means of what else was measured for each of these pairs; keys as of PairScore
    measures: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(Params):
    """One model's scores on one split.

    Attributes:
        model: name of the model.
        checkpoint_step: training steps of the checkpoint; None for several models, such as one
            baseline per pair.
        split: such as 'test'.
        pairs: a score per language pair, in any order; stored by training size.
        baseline_model: name of the model that ΔBLEU compares with, None without one.
        pivot: the language through which pairs without training data were translated; None for
            direct translation.
        metrics: column -> signature, of further metrics; in the order of their columns.
    """

    model: str
    checkpoint_step: int | None
    split: str
    pairs: Sequence[PairScore]
    baseline_model: str | None = None
    pivot: str | None = None
    metrics: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        ordered = sorted(self.pairs, key=lambda score: (-(score.train_examples or 0), score.pair))
        object.__setattr__(self, "pairs", tuple(ordered))

    def __str__(self):
        return format_table(self)

    @property
    def averages(self) -> Mapping[str, Averages]:
        """Means over 'all' pairs, thirds of those with training data, 'zero-shot', 'reliable'.

        'high' and 'low' have (n + 1) // 3 of n pairs with training data and 'mid' the rest: of 12
        pairs 4, 4, 4; of 38 pairs 13, 12, 13. 'zero-shot' are pairs without training data, and
        'reliable' those with enough test lines. If only some pairs of a group have baselines, its
        averages are over these.
        """
        trained = [score for score in self.pairs if score.train_examples]
        third = (len(trained) + 1) // 3
        low = len(trained) - third
        groups = {
            "all": self.pairs,
            "high": trained[:third],
            "mid": trained[third:low],
            "low": trained[low:],
            "zero-shot": [score for score in self.pairs if score.zero_shot],
            "reliable": [score for score in self.pairs if score.reliable],
        }
        return {name: _average(scores) for name, scores in groups.items()}


def save_report(report: Report, directory: str | pathlib.Path) -> None:
    """Writes DIRECTORY/report.json. Scores that do not exist are null."""
    contents = dataclasses.asdict(report)
    for score, fields in zip(report.pairs, contents["pairs"], strict=True):
        fields |= {derived: getattr(score, derived) for derived in _DERIVED}
    contents["averages"] = {k: dataclasses.asdict(v) for k, v in report.averages.items()}
    text = json.dumps(contents, indent=2, ensure_ascii=False)
    write_whole(pathlib.Path(directory, REPORT_FILE), text + "\n")


def load_report(directory: str | pathlib.Path, *, split: str | None = None) -> Report:
    """Reads a report.

    Args:
        directory: of the report.
        split: the split that it must be of; None for any.

    Raises FileNotFoundError: if there is none; ValueError: if the file is no report, or of another
    split.
    """
    path = pathlib.Path(directory, REPORT_FILE)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no report; name one of lingvo-moe-evaluate.")
    try:
        contents = read_json(path)
        fields = {field.name: contents[field.name] for field in dataclasses.fields(Report)}
        report = Report(**fields | {"pairs": list(map(_score_from_json, contents["pairs"]))})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a report of lingvo-moe-evaluate ({type(error).__name__}: {error})."
            " Evaluate again to write one."
        ) from error
    if split is not None and report.split != split:
        raise ValueError(
            f"{path} is of the split {report.split!r}, not {split!r}. Evaluate both systems on the"
            " same split."
        )
    return report


def format_table(report: Report) -> str:
    """The report as text for a terminal: a line per pair, then the averages."""
    title = f"{format_model(report)}, {report.split}"
    title += f", against {report.baseline_model}" if report.baseline_model else ""
    model = [""] * any(score.model for score in report.pairs)
    averages = [
        (f"{name} ({_format_pairs(average)})", "", "", *_cells(report, average), *model)
        for name, average in shown_averages(report).items()
    ]
    table = dataclasses.replace(pairs_table(report), more_rows=averages)
    return "\n".join((printable(title), table.to_text(), *notes(report)))


def pairs_table(report: Report) -> Table:
    """A row for each pair."""
    several = any(score.model for score in report.pairs)
    columns = ("pair", "train", "test", *(one.name for one in _columns(report)))
    rows = [
        (s.pair, *_sizes(s), *_cells(report, s), *[s.model or ""] * several) for s in report.pairs
    ]
    return Table((*columns, *["model"] * several), rows)


def averages_table(report: Report) -> Table:
    """A row for each group of pairs."""
    columns = [column for column in _columns(report) if column.key != "p_value"]
    rows = [
        (name, _format_pairs(average), *(column.cell(average) for column in columns))
        for name, average in shown_averages(report).items()
    ]
    return Table(("average over", "pairs", *(column.name for column in columns)), rows)


def shown_averages(report: Report) -> Mapping[str, Averages]:
    """The averages to show: without empty groups and groups that equal 'all'."""
    return {
        name: average
        for name, average in report.averages.items()
        if average.of and (name == "all" or average.of < len(report.pairs))
    }


def _format_pairs(average: Averages) -> str:
    """'3', or '2 of 3' if only two of a group's pairs have a baseline."""
    return f"{average.pairs}" if average.pairs == average.of else f"{average.pairs} of {average.of}"


def format_model(report: Report) -> str:
    """'tiny.MoE, step 1500': what was evaluated."""
    step = report.checkpoint_step
    return report.model if step is None else f"{report.model}, step {step}"


def _average(group: Sequence[PairScore]) -> Averages:
    compared = [score for score in group if score.baseline_bleu is not None]
    scores = compared or group

    def mean(name: str) -> float | None:
        values = [getattr(score, name) for score in scores]
        return statistics.fmean(values) if values and None not in values else None

    keys = dict.fromkeys(key for score in scores for key in score.measures)
    return Averages(
        pairs=len(scores),
        of=len(group),
        measures={
            key: statistics.fmean(score.measures[key] for score in scores)
            for key in keys
            if all(key in score.measures for score in scores)
        },
        **{name: mean(name) for name in ("bleu", "baseline_bleu", "delta_bleu", "chrf")},
    )


def _score_from_json(contents: dict) -> PairScore:
    check_file_name(contents["pair"], "a language pair", "de-en")
    return PairScore(**{k: v for k, v in contents.items() if k not in _DERIVED})


def _columns(report: Report) -> list[Column]:
    """The columns of numbers: scores, those of metrics, and what was measured."""
    of_metrics = [Column(name, name) for name in report.metrics]
    return [*SCORES, *of_metrics, *shown(report.pairs)]


def _cells(report: Report, scores: PairScore | Averages) -> list[str]:
    return [column.cell(scores) for column in _columns(report)]


def _sizes(score: PairScore) -> tuple[str, str]:
    train = "–" if score.train_examples is None else f"{score.train_examples:,}"
    return (
        f"{train}{ZERO_SHOT * score.zero_shot}",
        f"{score.test_examples:,}{'' if score.reliable else '?'}",
    )


def notes(report: Report) -> list[str]:
    """The meaning of the marks and of the measures that occur in the table."""
    found = []
    if any(score.significant for score in report.pairs):
        found.append("* p < 0.05, paired bootstrap test")
    if not all(score.reliable for score in report.pairs):
        found.append("? too few test lines for a reliable score")
    found += [column.note for column in _columns(report) if column.note]
    if any(score.zero_shot for score in report.pairs):
        through = f", translated through {report.pivot}" if report.pivot else ""
        found.append(f"{ZERO_SHOT} zero-shot: a pair without training data{through}")
    return found


_SAMPLES = 3
_THIRDS = "high, mid and low are thirds of the pairs by training data"


def page_parts(
    report: Report,
    outputs: Sequence[PairOutput],
    theirs: Mapping[str, Sequence[str] | None],
    plot: bytes,
    made_from: Mapping[str, str],
) -> list[str]:
    """The parts of the page as HTML.

    Args:
        report: the scores.
        outputs: the translations behind the scores, for samples.
        theirs: pair -> the translations of the baselines, if there are any.
        plot: the PNG.
        made_from: name -> text, of what a reader needs to make the report again.
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
        "<h2>Samples</h2>",
        *(_samples(output, theirs.get(output.pair)) for output in _sampled(report, outputs)),
        "<h2>How it was made</h2>" if made_from else "",
        *(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in made_from.items()),
    ]


def _signatures(report: Report) -> str:
    of_pairs = ((("BLEU", s.signature), ("chrF++", s.chrf_signature)) for s in report.pairs)
    named = dict.fromkeys([*itertools.chain(*of_pairs), *report.metrics.items()])
    return "".join(f"<p>{escape(name)} <code>{escape(text)}</code></p>" for name, text in named)


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
