"""Expert loads of a training run: a file format and a recorder.

S steps, L layers, D source devices, E experts.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.system import npz
from lingvo_moe.system.files import check_file


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
        """Reads what `save` wrote.

        Raises:
            ValueError: there is none, or it cannot be read.
        """

        def make(fields):
            layers, experts = map(str, fields["layers"]), map(int, fields["experts"])
            found = Trace(
                loads=fields["loads"],
                steps=fields["steps"],
                layers=tuple(layers),
                experts=tuple(experts),
            )
            shape, sizes = (len(found.steps), len(found.layers)), found.loads.shape
            if len(sizes) != 4 or sizes[:2] != shape or len(found.experts) != shape[1]:
                raise ValueError(f"loads of shape {sizes} for {shape} steps and layers")
            return found

        return npz.load(path, make, "trace of expert loads", "Record it with --record_loads.")


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
            layers, experts: as of a Trace.
            shape: (D, E) of each step.

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
            theirs, ours = (known.layers, known.loads.shape[2:]), (self._layers, shape)
            if theirs != ours:
                raise ValueError(
                    f"{path} is a trace of layers and (groups, experts) {theirs}, not {ours}; "
                    f"record to another file."
                )
            self._loads = dict(zip(known.steps.tolist(), known.loads, strict=True))

    def add(self, step: int, loads: np.ndarray) -> None:
        """Adds one step.

        Args:
            step: its number; recorded steps from this one on are removed.
            loads: [L, D, E], counts; floats are rounded.
        """
        if self._loads and next(reversed(self._loads)) >= step:
            self._loads = {s: a for s, a in self._loads.items() if s < step}
        self._loads[step] = np.rint(np.asarray(loads)).astype(np.int32)

    def save(self) -> None:
        """Writes the file; does nothing before the first step."""
        if self._loads:
            Trace(
                loads=np.stack(list(self._loads.values())),
                steps=np.array(list(self._loads), np.int64),
                layers=self._layers,
                experts=self._experts,
            ).save(self._path)
