"""Metrics are further scores of the report. A new metric is a subclass of Metric in a new file."""

import abc
import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from lingvo_moe.core.fields import Params, list_of
from lingvo_moe.core.params import parse_policy
from lingvo_moe.core.results import a_text, returns
from lingvo_moe.evaluation.report import TAKEN
from lingvo_moe.evaluation.scores import PairOutput

_CURE = "Correct the cause, or leave this --metric out."


def _finite(score, *_):
    return float(score) if not isinstance(score, bool) and math.isfinite(score) else None


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

    @returns("a finite number", _finite)
    @abc.abstractmethod
    def score(self, output: PairOutput) -> float:
        """The score of all lines of a pair, where 100 is best; the report shows one decimal."""

    @returns("a text", a_text)
    @abc.abstractmethod
    def signature(self) -> str:
        """All that another person needs to compute the same score."""


def _metric(given):
    if isinstance(given, Metric):
        return given
    if not isinstance(given, str):
        raise ValueError(
            f"A metric must be an object such as SpBleu(model='flores200.model'), or its text; got "
            f"{given!r}."
        )
    return parse_policy(Metric, given, "--metric")


def prepare_metrics(given: Sequence[str | Metric]) -> list[Metric]:
    """Metrics that are ready to use.

    Args:
        given: metrics, or texts such as "SpBleu(model='flores200.model')".

    Raises:
        ValueError: a text of another form, an unknown metric, two metrics with the same column, a
            column that the report has already, or a metric that cannot be used here.
    """
    metrics = [_metric(one) for one in list_of(given, "metrics")]
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
                f"column={name!r} cannot be the column of a metric: a name must be printable text, "
                f"and no column of the report ({', '.join(TAKEN)}). Give another one, such as "
                f"column='{type(metric).__name__}'."
            )
        _prepare(metric)
    return metrics


def score_of(metric: Metric, output: PairOutput) -> float:
    """The score of a metric; raises ValueError, with metric and pair, for any error of it."""
    what = f"{metric.column} of {output.pair} cannot be computed by {metric}"
    return _call(lambda: metric.score(output), what)


def signature_of(metric: Metric) -> str:
    """The signature of a metric; raises as `score_of`."""
    return _call(metric.signature, f"The signature of {metric} cannot be computed")


def _prepare(metric: Metric) -> None:
    try:
        metric.prepare()
    except ValueError:  # its text is for users
        raise
    except Exception as error:
        raise ValueError(_error_of(f"The metric {metric} cannot be used", error)) from error


def _call(function: Callable[[], Any], what: str) -> Any:
    """Calls a method of a metric; an error of any type becomes a ValueError."""
    try:
        return function()
    except Exception as error:  # of other packages and plug-ins
        raise ValueError(_error_of(what, error)) from error


def _error_of(what: str, error: Exception) -> str:
    cause = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"{what} ({cause}). {_CURE}"
