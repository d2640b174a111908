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
from typing import Any, NamedTuple

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.metrics.base import Metric
from lingvo_moe.evaluation.plot import draw_plot
from lingvo_moe.evaluation.report import (
    REPORT_FILE,
    Report,
    format_model,
    load_report,
    page_parts,
    save_report,
)
from lingvo_moe.evaluation.report_columns import measured
from lingvo_moe.evaluation.scores import (
    BOOTSTRAP_SAMPLES,
    PairOutput,
    PairScore,
    file_line,
    score_pair,
)
from lingvo_moe.reporting.page import document
from lingvo_moe.system.files import write_whole
from lingvo_moe.system.lines import read_lines

_SUFFIXES = {"sources": "src", "hypotheses": "hyp", "references": "ref"}


def hypotheses_path(
    directory: str | pathlib.Path, split: str, pair: str, suffix: str = "hyp"
) -> pathlib.Path:
    """The file of a pair's translations in an evaluation's directory, or of its 'src' or 'ref'."""
    return pathlib.Path(directory, "hypotheses", split, f"{pair}.{suffix}")


def write_hypotheses(directory: str | pathlib.Path, split: str, output: PairOutput) -> None:
    """Writes the three files of a pair."""
    for name, suffix in _SUFFIXES.items():
        path = hypotheses_path(directory, split, output.pair, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{line}\n" for line in getattr(output, name)))


def read_hypotheses(directory: str | pathlib.Path, split: str, pair: str) -> PairOutput:
    """Reads what `write_hypotheses` wrote, without the number of train lines.

    Args:
        directory: of the evaluation; `hypotheses/` is in it.
        split: such as 'test'.
        pair: such as 'sw-en'.

    Raises FileNotFoundError: if one of the three files is missing; ValueError: if they differ in
    length or are no UTF-8 text.
    """
    lines: dict[str, Any] = {
        name: list(read_lines(hypotheses_path(directory, split, pair, suffix)))
        for name, suffix in _SUFFIXES.items()
    }
    return PairOutput(pair=pair, train_examples=0, **lines)


IN_OUTPUT = "report"  # where lingvo-moe-baselines leaves its report, beside the logdirs of pairs


class Baseline(NamedTuple):
    """The translations of a pair by another model, its name, and the directory of its report."""

    output: PairOutput
    model: str
    home: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The baselines of pairs, from one or more reports; `by_pair` has them by pair."""

    by_pair: Mapping[str, Baseline]

    @staticmethod
    def load(paths: Sequence[pathlib.Path], split: str, pairs: Sequence[str]) -> "Baselines":
        """Reads reports and the translations beside them.

        Args:
            paths: each is the directory of a report, or the output of lingvo-moe-baselines, whose
                report is in the directory `report`. Each pair has the baseline of the first report
                that has it.
            split: the split they must be of.
            pairs: what is to be compared; the reports must have some of them.

        Raises FileNotFoundError: there is no report, or it has no translations beside it;
        ValueError: it is no report, of another split, or of other pairs.
        """
        found: dict[str, Baseline] = {}
        for path in paths:
            home = path / IN_OUTPUT if (path / IN_OUTPUT / REPORT_FILE).exists() else path
            report = load_report(home, split=split)
            for pair in (score.pair for score in report.pairs):
                if pair in pairs and pair not in found:
                    output = read_hypotheses(home, split, pair)
                    found[pair] = Baseline(output, report.model, home)
        if not found:
            raise ValueError(
                f"The baselines of {', '.join(map(str, paths))} are for other pairs; none is for"
                f" {', '.join(pairs)}. Name baselines of these pairs."
            )
        return Baselines(found)

    @property
    def model(self) -> str:
        """The names of their models."""
        return "; ".join(dict.fromkeys(one.model for one in self.by_pair.values()))

    def check(self, references: Mapping[str, Sequence[str]], directory: pathlib.Path) -> None:
        """Checks that both systems can be compared.

        Args:
            references: pair -> the lines that the new system is scored on.
            directory: of the new report.

        Raises ValueError: other references, or the new report would replace the baselines.
        """
        for pair, one in self.by_pair.items():
            if directory.resolve() == one.home.resolve():
                raise ValueError(
                    f"The baselines are in {directory}, where the report is to be written. Choose"
                    f" another output directory."
                )
            theirs, ours = one.output.references, tuple(map(file_line, references.get(pair, ())))
            if pair in references and theirs != ours:
                raise ValueError(
                    f"{pair}: the baseline in {one.home} was scored on other references than"
                    f" these ({len(theirs)} and {len(ours)} lines). Evaluate both on the same data."
                )

    def hypotheses(self, pair: str) -> Sequence[str] | None:
        """Their translations of a pair, if there are any."""
        return self.by_pair[pair].output.hypotheses if pair in self.by_pair else None


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
