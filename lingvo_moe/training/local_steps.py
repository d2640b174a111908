"""The choice between a step and its local variant, in which tokens stay on their node."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingvo_moe.core.nested_map import NestedMap

LOCAL, WHOLE = range(2)  # the variants of a step
_PURPOSE = 0x10CA1  # part of the seed: other draws have other numbers


class LocalSteps:
    """Draws the local steps from the seed and the step's number alone.

    So all processes draw the same steps, and a resumed run repeats them.
    """

    def __init__(self, rate: float, seed: int):
        """Begins at step 0.

        Args:
            rate: the probability of a local step.
            seed: of the draw.
        """
        self._rate, self._seed, self._step = rate, seed, 0
        self.last = WHOLE  # LOCAL or WHOLE, as the latest step was

    def take(self, step: Callable[[int], NestedMap]) -> NestedMap:
        """Takes one step.

        Args:
            step: LOCAL or WHOLE -> metrics.

        Returns:
            The metrics, with `local_steps` [], 1 or 0.
        """
        draw = np.random.default_rng((self._seed % 2**32, self._step, _PURPOSE)).random()
        local = draw < self._rate
        self.last = LOCAL if local else WHOLE
        metrics = step(self.last)
        self._step += 1
        return NestedMap(metrics, local_steps=np.float32(local))

    def state(self) -> dict[str, np.ndarray]:
        """Empty: the checkpoint has the number of steps in any case."""
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Continues from the "step" of the tensors; from 0 without it."""
        self._step = int(np.asarray(tensors["step"])) if "step" in tensors else 0
