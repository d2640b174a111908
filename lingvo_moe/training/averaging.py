"""Policies that choose or average the weights of a run for decoding, evaluation and export.

Sources: Polyak & Juditsky 1992, averages over steps; Vaswani et al. 2017, section 6.1, means of the
last checkpoints.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingvo_moe.config.fields import Params, PositiveInt
from lingvo_moe.training.lazy import mean
from lingvo_moe.training.optimizer import EMA

_THETA, _SLOTS = "theta/", "slots/"


@dataclasses.dataclass(frozen=True)
class Averaging(Params, abc.ABC):
    """A policy: which weights of a run are used."""

    def steps(self, steps: Sequence[int], step: int) -> Sequence[int]:
        """The checkpoints to read, `step` last.

        Args:
            steps: the steps of all checkpoints, ascending.
            step: the step of the wanted checkpoint.

        Raises ValueError: the average needs more checkpoints.
        """
        del steps
        return [step]

    @abc.abstractmethod
    def __call__(self, checkpoints: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The tensors to use, by name.

        Args:
            checkpoints: the tensors of each checkpoint of `steps`, by name.

        Raises ValueError: the checkpoints cannot be averaged.
        """


@dataclasses.dataclass(frozen=True)
class Ema(Averaging):
    """The moving average that training kept (optimizer.ema_decay); without one, the weights."""

    def __call__(self, checkpoints):
        (tensors,) = checkpoints
        averages = {
            f"{_THETA}{name.removeprefix(_SLOTS).removesuffix(f'/{EMA}')}": tensor
            for name, tensor in tensors.items()
            if name.startswith(_SLOTS) and name.endswith(f"/{EMA}")
        }
        return {**tensors, **averages} if averages else tensors


@dataclasses.dataclass(frozen=True)
class Raw(Averaging):
    """The weights of the checkpoint."""

    def __call__(self, checkpoints):
        (tensors,) = checkpoints
        return tensors


@dataclasses.dataclass(frozen=True)
class Last(Averaging):
    """The mean of the weights of several checkpoints.

    Attributes:
        n: number of checkpoints: the chosen one and those saved before it.
    """

    n: PositiveInt = 5

    def steps(self, steps, step):
        before = [s for s in steps if s <= step][-self.n :]
        if len(before) < self.n:
            raise ValueError(
                f"averaging=Last(n={self.n}) needs {self.n} checkpoints up to step {step}; there "
                f"are {before}. Give a smaller n, or train with a larger train.keep_checkpoints."
            )
        return before

    def __call__(self, checkpoints):
        newest, means = checkpoints[-1], {}
        for name, tensor in newest.items():
            if not name.startswith(_THETA):
                continue
            held = [tensors[name] for tensors in checkpoints]
            if np.dtype(tensor.dtype).kind != "i":
                means[name] = mean(held)
            elif any(np.any(np.asarray(one) != np.asarray(tensor)) for one in held):
                raise ValueError(
                    f"averaging={self} cannot average checkpoints between which experts moved "
                    f"({name}); use averaging=Ema() or Raw()."
                )
        return {**newest, **means}
