"""Loads of experts to replay: generated ones, and recorded ones on other machines.

S steps, L layers, D source devices, E experts.
"""

import dataclasses

import numpy as np

from experiments.placement.traces import Trace
from lingvo_moe.config.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Share,
)


def on_devices(trace: Trace, devices: int) -> Trace:
    """The same tokens on another number of sources.

    For fewer sources neighbours are merged. For more sources each is split evenly; remaining tokens
    go to its parts in turn, so that the parts are as equal as possible.

    Raises:
        ValueError: one number does not divide the other.
    """
    now = trace.num_devices
    if devices < 1 or (now % devices and devices % now):
        raise ValueError(
            f"A trace of {now} source devices cannot be replayed on {devices}: one number must "
            f"divide the other."
        )
    shape = trace.loads.shape
    if devices <= now:
        merged = trace.loads.reshape(*shape[:2], devices, -1, shape[3])
        return dataclasses.replace(trace, loads=merged.sum(axis=3))
    parts = devices // now
    # Token q of a source, experts one after another, goes to part q mod parts.
    ends = np.cumsum(trace.loads, axis=3, dtype=np.int64)[:, :, :, None, :]
    begins = ends - trace.loads[:, :, :, None, :]
    part = np.arange(parts)[:, None]
    split = (ends - part + parts - 1) // parts - (begins - part + parts - 1) // parts
    return dataclasses.replace(
        trace, loads=split.reshape(*shape[:2], devices, shape[3]).astype(trace.loads.dtype)
    )


def scaled(trace: Trace, choices: float) -> Trace:
    """All loads times one factor, rounded, to use the loads of a small run for a large machine.

    Args:
        trace: the loads.
        choices: of a source device, mean over steps and layers.
    """
    factor = choices * np.prod(trace.loads.shape[:3]) / trace.loads.sum(dtype=np.int64)
    return dataclasses.replace(trace, loads=np.rint(trace.loads * factor).astype(np.int64))


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
