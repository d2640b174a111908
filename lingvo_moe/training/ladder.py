"""Which of several programs takes a step: the smallest that fits, found by trying.

A rung is one of several steps that compute the same with ever larger buffers. A step on too low a
rung leaves the state as it was (train.step), so it can be taken again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingvo_moe.core.nested_map import NestedMap

_NAME = "ladder"


class Ladder:
    """Stands on one rung; climbs when a step asks for more, descends after calm.

    Where it stands changes no result but by the rounding of sums in another order. It is part of
    the checkpoint, so that a resumed run climbs where the whole run did.
    """

    def __init__(self, rungs: int, patience: int = 10):
        """On the lowest rung.

        Args:
            rungs: how many there are; with one, `take` only takes steps.
            patience: successive steps that must have had enough on a lower rung before it descends,
                to the highest that any of them needed.
        """
        self._rungs, self._patience = rungs, patience
        self.rung = self._calm = self._needed = 0

    def take(self, step: Callable[[int], NestedMap]) -> NestedMap:
        """Takes one step, on higher rungs until it is done.

        Args:
            step: rung -> metrics, with `needed_rung` [] among them, waited for; changes nothing if
                that is above rung.

        Returns:
            The metrics of the step that was done, with `rung`, where it was, and `retries`, how
            often it was taken before.
        """
        if self._rungs == 1:
            return step(0)
        retries = 0
        while (needed := int((metrics := step(self.rung)).needed_rung)) > self.rung:
            # Not the end perhaps: a layer without room misleads the layers after it.
            self.rung, self._calm, self._needed = needed, 0, 0
            retries += 1
        metrics = NestedMap(metrics, rung=np.float32(self.rung), retries=np.float32(retries))
        self._settle(needed)
        return metrics

    def state(self) -> dict[str, np.ndarray]:
        """Where it stands, for a checkpoint: {"ladder": int64 [3]}; {} with one rung."""
        if self._rungs <= 1:
            return {}
        return {_NAME: np.array([self.rung, self._calm, self._needed], np.int64)}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Goes to where `state` was; back to the lowest rung if they say nothing of it."""
        stood = np.asarray(tensors[_NAME]) if self._rungs > 1 and _NAME in tensors else (0, 0, 0)
        self.rung, self._calm, self._needed = map(int, stood)

    def _settle(self, needed):
        """Descends when the last `patience` steps all had enough on a lower rung."""
        if needed == self.rung:
            self._calm = self._needed = 0
            return
        self._calm, self._needed = self._calm + 1, max(self._needed, needed)
        if self._calm == self._patience:
            self.rung, self._calm, self._needed = self._needed, 0, 0
