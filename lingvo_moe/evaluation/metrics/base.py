"""Metrics are further scores of the report. A new metric is a subclass of Metric in a new file."""

import abc
import collections
import dataclasses
from collections.abc import Sequence

from lingvo_moe.core.fields import Params
from lingvo_moe.core.params import parse_policy
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
        """Downloads what the metric needs, and finds errors before anything is translated.

        Raises:
            ValueError: a file or a package is missing, or the download fails.
        """

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

    Raises:
        ValueError: a text of another form, an unknown metric, two metrics with the same column, or
            a metric that cannot be used here.
    """
    metrics = [
        one if isinstance(one, Metric) else parse_policy(Metric, one, "--metric") for one in given
    ]
    counts = collections.Counter(metric.column for metric in metrics)
    if repeated := [column for column, count in counts.items() if count > 1]:
        raise ValueError(
            f"Two metrics have the column {repeated[0]!r}. Give each its own, such as"
            f" column='{repeated[0]}-2'."
        )
    for metric in metrics:
        metric.prepare()
    return metrics
