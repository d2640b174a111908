"""Metrics are further scores of the report. A new metric is a subclass of Metric in a new file."""

import abc
import dataclasses
from collections.abc import Sequence

from lingvo_moe.config.fields import Params
from lingvo_moe.config.params import parse_policy
from lingvo_moe.evaluation.report import TAKEN
from lingvo_moe.evaluation.scores import PairOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric(Params, abc.ABC):
    """A policy: one score for the translations of a language pair.

    Attributes:
        column: the name of the score in the report.
    """

    column: str

    @abc.abstractmethod
    def prepare(self) -> None:
        """Downloads what the metric needs, and finds errors before anything is translated. Raises
        ValueError: a file or a package is missing, or the download fails."""

    @abc.abstractmethod
    def score(self, output: PairOutput) -> float:
        """The score of all lines of a pair, where 100 is best; the report shows one decimal."""

    @abc.abstractmethod
    def signature(self) -> str:
        """All that another person needs to compute the same score."""


def prepare_metrics(given: Sequence[str | Metric]) -> list[Metric]:
    """Metrics that are ready to use.

    Args:
        given: metrics, or texts such as "SpBleu(model='flores200.model')".

    Raises ValueError: a text of another form, an unknown metric, two metrics with the same column,
    a column that the report has already, or a metric that cannot be used here.
    """
    metrics = [
        one if isinstance(one, Metric) else parse_policy(Metric, one, "--metric") for one in given
    ]
    taken = set(TAKEN)
    for metric in metrics:
        if metric.column in taken:
            raise ValueError(
                f"column={metric.column!r} is the column of another score; give the metric one "
                f"that is none of {', '.join(sorted(taken))}."
            )
        taken.add(metric.column)
        metric.prepare()
    return metrics
