"""Forecasts of the loads of experts from past loads.

Loads drift, and vary randomly from batch to batch. A short average follows the drift; a long one
suppresses random variation. The best length differs between runs, layers and batch sizes. So
several averages are kept, and the one with the smallest past errors is used: exponential smoothing
(Gardner 1985) with a constant chosen by its errors.

A averages, D devices, E experts.
"""

import dataclasses
from typing import NamedTuple

import numpy as np


class Seen(NamedTuple):
    """The state of a forecast.

    Attributes:
        averages: float [A, D, E], of loads.
        errors: float [A], mean difference of each average from the next loads, as a share of all
            tokens.
    """

    averages: np.ndarray
    errors: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Averages of different lengths; the one with the smallest error is the forecast.

    Attributes:
        smoothing: weight of the past in each average: 0 is the last step alone, 0.5 about two
            steps, 0.9375 about sixteen.
        memory: weight of the past in the errors.
    """

    smoothing: tuple[float, ...] = (0.0, 0.5, 0.75, 0.875, 0.9375)
    memory: float = 0.9

    def update(self, seen: Seen | None, loads: np.ndarray) -> Seen:
        """The state after a step.

        Args:
            seen: the state after the last step; None at the first.
            loads: [D, E], this step's tokens of each expert on each source.
        """
        if seen is None:
            first = np.broadcast_to(loads, (len(self.smoothing), *loads.shape)).astype(float)
            return Seen(first, np.zeros(len(self.smoothing)))
        missed = np.abs(seen.averages.sum(axis=1) - loads.sum(axis=0)).sum(axis=1)
        errors = self.memory * seen.errors + (1 - self.memory) * missed / max(loads.sum(), 1)
        past = np.array(self.smoothing)[:, None, None]
        return Seen(past * seen.averages + (1 - past) * loads, errors)

    def loads(self, seen: Seen) -> np.ndarray:
        """float [D, E]: the forecast for the next step."""
        return seen.averages[seen.errors.argmin()]
