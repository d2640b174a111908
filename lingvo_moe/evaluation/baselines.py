"""Earlier evaluations on disk: translations, and reports to compare a new one with."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lingvo_moe.evaluation.report import REPORT_FILE, load_report
from lingvo_moe.evaluation.scores import PairOutput, file_line
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


def read_hypotheses(
    directory: str | pathlib.Path, split: str, pair: str, *, train_examples: int = 0
) -> PairOutput:
    """Reads what `write_hypotheses` wrote.

    Args:
        directory: of the evaluation; `hypotheses/` is in it.
        split: such as 'test'.
        pair: such as 'sw-en'.
        train_examples: of the result; it is not in the files.

    Raises FileNotFoundError: if one of the three files is missing; ValueError: if they differ in
    length or are no UTF-8 text.
    """
    lines: dict[str, Any] = {
        name: list(read_lines(hypotheses_path(directory, split, pair, suffix)))
        for name, suffix in _SUFFIXES.items()
    }
    return PairOutput(pair=pair, train_examples=train_examples, **lines)


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
