"""What experts will be asked next, from what they were asked.

Loads drift, and from batch to batch they scatter. A short average follows the drift, a long one is
not misled by the scatter, and which is better differs between runs, layers and batch sizes. So
several are kept, and the one that has foretold best counts: exponential smoothing (Gardner 1985)
whose constant is chosen by its own record of errors.

A averages, D devices, E experts.
"""

import dataclasses
from typing import NamedTuple

import numpy as np


class Seen(NamedTuple):
    """What a forecast remembers.

    Attributes:
        averages: float [A, D, E], of loads.
        errors: float [A], how far each has been from the loads that followed, as a share of all
            tokens, averaged over steps.
    """

    averages: np.ndarray
    errors: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Averages of different lengths, of which the best so far speaks.

    Attributes:
        smoothing: share of the past in each average: 0 is the last step alone, 0.5 about two steps,
            0.9375 about sixteen.
        memory: share of the past in the errors.

    Raises:
        ValueError: no average, or a share outside [0, 1).
    """

    smoothing: tuple[float, ...] = (0.0, 0.5, 0.75, 0.875, 0.9375)
    memory: float = 0.9

    def __post_init__(self):
        shares = (*self.smoothing, self.memory)
        if not self.smoothing or not all(0 <= share < 1 for share in shares):
            raise ValueError(
                f"smoothing must be one share or several and memory one, in [0, 1); got "
                f"{self.smoothing} and {self.memory}."
            )

    def update(self, seen: Seen | None, loads: np.ndarray) -> Seen:
        """After a step.

        Args:
            seen: of the last step; None at the first.
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
        """float [D, E]: of the next step."""
        return seen.averages[seen.errors.argmin()]
