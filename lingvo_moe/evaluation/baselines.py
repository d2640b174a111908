"""Earlier evaluations on disk: translations, and reports to compare a new one with."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.report import REPORT_FILE, load_report
from lingvo_moe.evaluation.scores import PairOutput, PairScore, file_line
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

    Raises:
        FileNotFoundError: if one of the three files is missing.
        ValueError: if they differ in length or are no UTF-8 text.
    """
    lines: dict[str, Any] = {
        name: list(read_lines(hypotheses_path(directory, split, pair, suffix)))
        for name, suffix in _SUFFIXES.items()
    }
    return PairOutput(pair=pair, train_examples=train_examples, **lines)


IN_OUTPUT = "report"  # where lingvo-moe-baselines leaves its report, beside the logdirs of pairs


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The scores and translations of baselines, of one or more reports.

    Attributes:
        homes: pair -> the directory of its report.
        model: the names of their models.
        scores: pair -> its score.
        outputs: pair -> its translations, for pairs with translations in the report's directory.
    """

    homes: Mapping[str, pathlib.Path]
    model: str
    scores: Mapping[str, PairScore]
    outputs: Mapping[str, PairOutput]

    @staticmethod
    def load(paths: Sequence[pathlib.Path], split: str, pairs: Sequence[str]) -> "Baselines":
        """Reads reports and the translations in their directories.

        Args:
            paths: each is a report.json, the directory it is in, or the output of
                lingvo-moe-baselines, whose report is in the directory `report`. Each pair has the
                baseline of the first report that has it.
            split: the split they must be of.
            pairs: what is to be compared; the reports must have some of them.

        Raises:
            FileNotFoundError: there is no report.
            ValueError: it is no report, of another split, or of other pairs.
        """
        homes: dict[str, pathlib.Path] = {}
        models: list[str] = []
        scores: dict[str, PairScore] = {}
        outputs: dict[str, PairOutput] = {}
        for path in paths:
            if (path / IN_OUTPUT / REPORT_FILE).exists():
                path = path / IN_OUTPUT
            report, home = load_report(path, split=split), path if path.is_dir() else path.parent
            new = {s.pair: s for s in report.pairs if s.pair in pairs and s.pair not in scores}
            scores |= new
            homes |= dict.fromkeys(new, home)
            models += [report.model] * bool(new)
            for pair in new:
                if hypotheses_path(home, split, pair).exists():
                    outputs[pair] = read_hypotheses(home, split, pair)
        if not scores:
            raise ValueError(
                f"The baselines of {', '.join(map(str, paths))} are for other pairs; none is for"
                f" {', '.join(pairs)}. Name baselines of these pairs."
            )
        return Baselines(homes, "; ".join(dict.fromkeys(models)), scores, outputs)

    def check(
        self, references: Mapping[str, Sequence[str]], chosen_tokenizers: Mapping[str, str]
    ) -> None:
        """Checks that the scores of both systems are comparable.

        Args:
            references: pair -> the lines that the new system is scored on.
            chosen_tokenizers: pair -> the tokenizer for BLEU.

        Raises:
            ValueError: other references; or BLEU with another tokenizer and no translations, which
                are needed to score again.
        """
        for pair, lines in references.items():
            if pair in self.outputs:
                theirs, ours = self.outputs[pair].references, tuple(map(file_line, lines))
                if theirs != ours:
                    raise ValueError(
                        f"{pair}: the baseline in {self.homes[pair]} was scored on other"
                        f" references than these ({len(theirs)} and {len(ours)} lines). Evaluate"
                        f" both on the same data."
                    )
            elif score := self.scores.get(pair):
                their, our = (
                    (score.test_examples, score.signature),
                    (
                        len(lines),
                        tokenizers.signature(chosen_tokenizers[pair]),
                    ),
                )
                if their != our:
                    raise ValueError(
                        f"{pair}: lines and signature are {their} for the baseline and {our} here."
                        " BLEU needs one test set scored in one way. Evaluate both again."
                    )

    def check_not_in(self, directory: pathlib.Path) -> None:
        """Raises ValueError if a new report in that directory would replace the baselines."""
        if directory.resolve() in {home.resolve() for home in self.homes.values()}:
            raise ValueError(
                f"The baselines are in {directory}, where the report is to be written. Choose"
                " another output directory."
            )

    def hypotheses(self, pair: str) -> Sequence[str] | None:
        """Their translations of a pair, if there are any."""
        return self.outputs[pair].hypotheses if pair in self.outputs else None
