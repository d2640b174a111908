"""Expert loads of a training run: a file format.

S steps, L layers, D source devices, E experts.
"""

import dataclasses
from pathlib import Path

import numpy as np

from lingvo_moe.system import npz


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Loads step by step.

    Attributes:
        loads: int [S, L, D, E], choices of each expert made on each source device.
        steps: int64 [S], numbers of the training steps, ascending.
        layers: names of the L layers.
        experts: number of experts of each layer; loads beyond it are 0. () if every layer has E.
    """

    loads: np.ndarray
    steps: np.ndarray
    layers: tuple[str, ...]
    experts: tuple[int, ...] = ()

    @property
    def num_devices(self) -> int:
        """D."""
        return self.loads.shape[2]

    @property
    def layer_experts(self) -> tuple[int, ...]:
        """The number of experts of each layer."""
        return self.experts or (self.loads.shape[3],) * len(self.layers)

    def of_layer(self, layer: int) -> np.ndarray:
        """The loads of a layer's own experts, int [S, D, experts of the layer]."""
        return self.loads[:, layer, :, : self.layer_experts[layer]]

    def save(self, path: Path) -> None:
        """Writes an .npz file, which appears when it is complete."""
        experts = np.array(self.layer_experts)
        layers = np.array(self.layers, str)
        npz.save(path, loads=self.loads, steps=self.steps, layers=layers, experts=experts)

    @staticmethod
    def load(path: Path) -> "Trace":
        """Reads what `save` wrote. Raises ValueError: there is none, or it cannot be read."""

        def make(fields):
            layers, experts = map(str, fields["layers"]), map(int, fields["experts"])
            return Trace(
                loads=fields["loads"],
                steps=fields["steps"],
                layers=tuple(layers),
                experts=tuple(experts),
            )

        return npz.load(
            path, make, "trace of expert loads", "python -m experiments.placement.record makes one."
        )
