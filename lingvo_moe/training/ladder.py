"""A ladder of programs: each step runs on the lowest rung with enough room.

The rungs are programs of the same step with increasingly large buffers. A step on a rung that is
too low does not change the state (training.step), so it can run again on a higher one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingvo_moe.nn.nested_map import NestedMap

_NAME = "ladder"


class Ladder:
    """The current rung: it rises when a step needs more room, and falls after `patience` steps.

    The rung changes results only by the rounding of sums in another order. It is part of the
    checkpoint, so that a resumed run uses the same rungs.
    """

    def __init__(self, rungs: int, patience: int = 10):
        """Starts on the lowest rung.

        Args:
            rungs: their number; with one, `take` only takes steps.
            patience: number of successive steps that fit a lower rung before the ladder goes down,
                to the highest rung that these steps needed.
        """
        self._rungs, self._patience = rungs, patience
        self.rung = self._calm = self._needed = 0

    def take(self, step: Callable[[int], NestedMap]) -> NestedMap:
        """Takes one step, again on a higher rung if it did not fit.

        Args:
            step: rung -> metrics with `needed_rung` []; it changes nothing if that is above rung.

        Returns the metrics of the completed step, with its `rung` and the number of `retries`.
        """
        if self._rungs == 1:
            return step(0)
        retries = 0
        while (needed := int((metrics := step(self.rung)).needed_rung)) > self.rung:
            # May repeat: a layer without room gives wrong loads to later layers.
            self.rung, self._calm, self._needed = needed, 0, 0
            retries += 1
        metrics = NestedMap(metrics, rung=np.float32(self.rung), retries=np.float32(retries))
        self._settle(needed)
        return metrics

    def state(self) -> dict[str, np.ndarray]:
        """The state for a checkpoint; {} with one rung. Returns {"ladder": int64 [3]}: the rung,
        the number of successive steps that fitted a lower rung, and the highest rung that these
        steps needed."""
        if self._rungs <= 1:
            return {}
        return {_NAME: np.array([self.rung, self._calm, self._needed], np.int64)}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Restores `state`.

        Args:
            tensors: a checkpoint. Without "ladder" in it, the ladder starts on the lowest rung. A
                rung that there is no longer becomes the highest one.
        """
        stood = np.asarray(tensors[_NAME]) if self._rungs > 1 and _NAME in tensors else (0, 0, 0)
        rung, self._calm, needed = map(int, stood)
        self.rung, self._needed = (min(one, self._rungs - 1) for one in (rung, needed))

    def _settle(self, needed):
        """Goes down if the last `patience` steps all fit a lower rung."""
        if needed == self.rung:
            self._calm = self._needed = 0
            return
        self._calm, self._needed = self._calm + 1, max(self._needed, needed)
        if self._calm == self._patience:
            self.rung, self._calm, self._needed = self._needed, 0, 0
