"""Expert loads of a training run: a file format and a recorder.

S steps, L layers, D source devices, E experts.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.core import npz
from lingvo_moe.core.files import check_file


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Loads step by step.

    Attributes:
        loads: int32 [S, L, D, E], choices of each expert made on each source device.
        steps: int64 [S], numbers of the training steps, ascending.
        layers: names of the L layers.
        experts: number of experts of each layer; loads beyond it are 0. () if every layer has E.
    """

    loads: np.ndarray
    steps: np.ndarray
    layers: tuple[str, ...]
    experts: tuple[int, ...] = ()

    def __post_init__(self):
        shape = (len(self.steps), len(self.layers))
        if self.loads.ndim != 4 or self.loads.shape[:2] != shape or not self.loads.size:
            raise ValueError(
                f"Loads must be [steps, layers, devices, experts] with {shape[0]} steps and "
                f"{shape[1]} layers, none of them 0; got {self.loads.shape}."
            )
        if not np.issubdtype(self.loads.dtype, np.integer) or self.loads.min() < 0:
            raise ValueError(f"Loads must be counts, integers from 0 on; got {self.loads.dtype}.")
        if np.any(np.diff(self.steps) <= 0):
            raise ValueError("Steps of a trace must ascend.")
        if len(self.layer_experts) != len(self.layers) or any(
            not 0 < experts <= self.loads.shape[3] or self.loads[:, layer, :, experts:].any()
            for layer, experts in enumerate(self.layer_experts)
        ):
            raise ValueError(
                f"experts={self.experts} must have a number from 1 to {self.loads.shape[3]} for "
                f"each of the {len(self.layers)} layers, and loads of experts above that number "
                f"must be 0. Change the argument experts."
            )

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
        npz.save(
            path,
            loads=self.loads,
            steps=self.steps,
            layers=np.array(self.layers, str),
            experts=np.array(self.layer_experts),
        )

    @staticmethod
    def load(path: Path) -> "Trace":
        """Reads what `save` wrote.

        Raises:
            ValueError: there is none, or it cannot be read.
        """

        def make(fields):
            return Trace(
                loads=fields["loads"],
                steps=fields["steps"],
                layers=tuple(map(str, fields["layers"])),
                experts=tuple(map(int, fields.get("experts", ()))),
            )

        cure = (
            "It must be an .npz file of steps, layers and loads [steps, layers, devices, experts]."
        )
        return npz.load(path, make, "trace of expert loads", cure)


class TraceRecorder:
    """Collects a trace during training.

    A resumed run continues the file: steps from the resumed one on are recorded again.
    """

    def __init__(
        self,
        path: Path,
        layers: Sequence[str],
        shape: tuple[int, int],
        experts: Sequence[int] = (),
    ):
        """Opens a recording.

        Args:
            path: the file that `save` writes; its earlier contents are kept. Its directory is made.
            layers: names of the L layers.
            shape: (D, E) of each step.
            experts: as of a Trace.

        Raises:
            ValueError: the file is of other layers or another shape.
            OSError: no file can be written there.
        """
        self._path, self._layers, self._experts = Path(path), tuple(layers), tuple(experts)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        check_file(self._path)
        self._loads: dict[int, np.ndarray] = {}
        if self._path.exists():
            known = Trace.load(self._path)
            if known.layers != self._layers:
                raise ValueError(
                    f"{path} is a trace of layers {known.layers}, not {self._layers}; "
                    f"record to another file."
                )
            if known.loads.shape[2:] != shape:
                raise ValueError(
                    f"{path} is of (groups, experts) {known.loads.shape[2:]}, not {shape}; "
                    f"record to another file."
                )
            self._loads = dict(zip(known.steps.tolist(), known.loads, strict=True))

    def add(self, step: int, loads: np.ndarray) -> None:
        """Adds one step.

        Args:
            step: its number; recorded steps from this one on are removed.
            loads: [L, D, E], counts; floats are rounded.

        Raises:
            ValueError: not of the shape of earlier steps.
        """
        loads = np.rint(np.asarray(loads)).astype(np.int32)
        if self._loads and loads.shape != next(iter(self._loads.values())).shape:
            raise ValueError(
                f"Loads of step {step} are {loads.shape}, those before "
                f"{next(iter(self._loads.values())).shape}."
            )
        if self._loads and next(reversed(self._loads)) >= step:
            self._loads = {s: a for s, a in self._loads.items() if s < step}
        self._loads[step] = loads

    def save(self) -> None:
        """Writes the file; does nothing before the first step."""
        if self._loads:
            Trace(
                loads=np.stack(list(self._loads.values())),
                steps=np.array(list(self._loads), np.int64),
                layers=self._layers,
                experts=self._experts,
            ).save(self._path)
