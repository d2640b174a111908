"""Metrics are further scores of the report. A new metric is a subclass of Metric in a new file."""

import abc
import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

from lingvo_moe.config.fields import Params, list_of
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
        one if isinstance(one, Metric) else parse_policy(Metric, one, "--metric")
        for one in list_of(given, "metrics")
    ]
    counts = collections.Counter(metric.column for metric in metrics)
    if repeated := [column for column, count in counts.items() if count > 1]:
        raise ValueError(
            f"Two metrics have the column {repeated[0]!r}. Give each its own, such as"
            f" column='{repeated[0]}-2'."
        )
    for metric in metrics:
        name = metric.column
        if name in TAKEN or not name.strip() or not name.isprintable():
            raise ValueError(
                f"column={name!r} cannot be the column of a metric; give another name than "
                f"{', '.join(TAKEN)}."
            )
        with _errors_of(f"The metric {metric} cannot be used"):
            metric.prepare()
    return metrics


def score_of(metric: Metric, output: PairOutput) -> float:
    """The score of a metric; raises ValueError, with metric and pair, for any error of it."""
    with _errors_of(f"{metric.column} of {output.pair} cannot be computed by {metric}"):
        score = float(metric.score(output))
        if not math.isfinite(score):  # no report could be read that has it
            raise ValueError(f"its score is {score}")
        return score


def signature_of(metric: Metric) -> str:
    """The signature of a metric; raises as `score_of`."""
    with _errors_of(f"The signature of {metric} cannot be computed"):
        return metric.signature()


@contextlib.contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """Errors of other packages and plug-ins become a ValueError."""
    try:
        yield
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{what} ({cause}). Correct it, or leave this --metric out.") from error
