"""Expert loads of a training run: a file format, a recorder, and a generator.

S steps, L layers, D source devices, E experts.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.core import npz
from lingvo_moe.core.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Share,
)
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

    def on_devices(self, devices: int) -> "Trace":
        """The same tokens on another number of sources.

        For fewer sources neighbours are merged. For more sources each is split evenly; remaining
        tokens go to its parts in turn, so that the parts are as equal as possible.

        Raises:
            ValueError: one number does not divide the other.
        """
        now = self.num_devices
        if devices < 1 or (now % devices and devices % now):
            raise ValueError(
                f"A trace of {now} source devices cannot be replayed on {devices}: one number must "
                f"divide the other."
            )
        shape = self.loads.shape
        if devices <= now:
            merged = self.loads.reshape(*shape[:2], devices, -1, shape[3])
            return self._with(merged.sum(axis=3, dtype=np.int64), f"Raise devices (now {devices}).")
        parts = devices // now
        # Token q of a source, experts one after another, goes to part q mod parts.
        ends = np.cumsum(self.loads, axis=3, dtype=np.int64)[:, :, :, None, :]
        begins = ends - self.loads[:, :, :, None, :]
        part = np.arange(parts)[:, None]
        split = (ends - part + parts - 1) // parts - (begins - part + parts - 1) // parts
        return dataclasses.replace(
            self, loads=split.reshape(*shape[:2], devices, shape[3]).astype(self.loads.dtype)
        )

    def scaled(self, choices: float) -> "Trace":
        """All loads times one factor, rounded, to use the loads of a small run for a large machine.

        Args:
            choices: of a source device, mean over steps and layers.

        Raises:
            ValueError: choices are out of range, or the trace has none.
        """
        if not 0 < choices < 2**31:
            raise ValueError(f"choices must be above 0 and below 2^31, got {choices}.")
        if not self.loads.any():
            raise ValueError("The trace has no choices; there is nothing to multiply.")
        factor = choices * np.prod(self.loads.shape[:3]) / self.loads.sum(dtype=np.int64)
        return self._with(np.rint(self.loads * factor), f"Lower choices (now {choices:g}).")

    def _with(self, loads, cure):
        """The same with other loads, which must fit into int32."""
        if loads.max() >= 2**31:
            raise ValueError(
                f"In one step the tokens of one device would choose an expert "
                f"{loads.max():,.0f} times, above the limit of 2^31 - 1. {cure}"
            )
        return dataclasses.replace(self, loads=loads.astype(np.int32))


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticLoads(Params):
    """Loads as in the paper's Figure 3: skewed, and drifting smoothly.

    The logarithm of an expert's popularity follows an Ornstein-Uhlenbeck process with a lag, which
    makes it smooth; at each step it is scaled so that the `top` most popular experts have
    `top_share` of the choices. Each source device adds a process of its own. Choices are drawn from
    the result.

    Attributes:
        devices: D.
        experts: E.
        steps: S.
        layers: L, independent of each other.
        tokens: of one source device and step.
        top_k: choices of a token.
        top: number of popular experts.
        top_share: their share of all choices.
        memory: time constant of the lag and of the process, in steps; popularities this number of
            steps apart have a correlation of 2/e.
        device_spread: standard deviation of a device's own process.
        seed: of all random numbers.
    """

    devices: PositiveInt
    experts: PositiveInt = 64
    steps: PositiveInt = 300
    layers: PositiveInt = 1
    tokens: PositiveInt = 8192
    top_k: PositiveInt = 2
    top: PositiveInt = 10
    top_share: Share = 0.75
    memory: PositiveFloat = 300.0
    device_spread: NonNegativeFloat = 0.2
    seed: NonNegativeInt = 0

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.top < self.experts:
            raise ValueError(f"top must be from 1 to {self.experts - 1}, got {self.top}.")
        if not self.top / self.experts <= self.top_share < 1:
            raise ValueError(
                f"top_share must be in [{self.top}/{self.experts}, 1), got {self.top_share}."
            )

    def generate(self) -> Trace:
        """Draws the trace."""
        rng = np.random.default_rng(self.seed)
        shape = (self.layers, self.devices + 1, self.experts)
        keep = np.exp(-1 / self.memory)
        # Stationary from the start: x has variance 1; y, which lags behind x, has variance 1/2;
        # their covariance is 1/2.
        x = rng.standard_normal(shape)
        y = x / 2 + rng.standard_normal(shape) / 2
        loads = np.empty((self.steps, self.layers, self.devices, self.experts), np.int32)
        for step in range(self.steps):
            logits = np.stack([self._skewed(layer[0]) for layer in y])  # [L, E]
            logits = logits[:, None] + self.device_spread * np.sqrt(2) * y[:, 1:]
            chances = np.exp(logits - logits.max(axis=2, keepdims=True))
            chances /= chances.sum(axis=2, keepdims=True)
            loads[step] = rng.multinomial(self.tokens * self.top_k, chances)
            y = keep * y + (1 - keep) * x
            x = keep * x + np.sqrt(1 - keep**2) * rng.standard_normal(shape)
        return Trace(
            loads=loads,
            steps=np.arange(self.steps),
            layers=tuple(f"layer_{i:02d}" for i in range(self.layers)),
        )

    def _skewed(self, popularity: np.ndarray) -> np.ndarray:
        """Logits scaled so that the top experts have their share; bisection finds the factor."""
        ordered = np.sort(popularity - popularity.max())[::-1]
        low, high = 0.0, 100.0
        for _ in range(50):
            factor = (low + high) / 2
            weights = np.exp(factor * ordered)
            low, high = (
                (factor, high)
                if weights[: self.top].sum() < self.top_share * weights.sum()
                else (low, factor)
            )
        return high * popularity
