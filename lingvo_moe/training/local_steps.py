"""The choice between a step and its local variant, in which tokens stay on their node."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingvo_moe.core.nested_map import NestedMap

LOCAL, WHOLE = range(2)  # the variants of a step
_PURPOSE = 0x10CA1  # so that no other draw has this seed


class LocalSteps:
    """Draws the local steps by the seed and the step's number alone.

    So every process draws the same ones, and a resumed run too.
    """

    def __init__(self, rate: float, seed: int):
        """Begins at step 0.

        Args:
            rate: the probability of a local step.
            seed: of the draw.
        """
        self._rate, self._seed, self._step = rate, seed, 0

    def take(self, step: Callable[[int], NestedMap]) -> NestedMap:
        """Takes one step.

        Args:
            step: LOCAL or WHOLE -> metrics.

        Returns:
            The metrics, with `local_steps` [], 1 or 0.
        """
        draw = np.random.default_rng((self._seed % 2**32, self._step, _PURPOSE)).random()
        local = draw < self._rate
        metrics = step(LOCAL if local else WHOLE)
        self._step += 1
        return NestedMap(metrics, local_steps=np.float32(local))

    def state(self) -> dict[str, np.ndarray]:
        """Nothing: the number of steps is in the checkpoint anyway."""
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Continues from the "step" of the tensors; without one from 0."""
        self._step = int(np.asarray(tensors["step"])) if "step" in tensors else 0
