"""Criteria: policies that say which of a run's evaluations is the best."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from lingvo_moe.config.fields import NonNegativeFloat, Params


@dataclasses.dataclass(frozen=True)
class Criterion(Params, abc.ABC):
    """What makes one evaluation better than another.

    It chooses the checkpoint that is used after training, ends training by `train.patience`, and
    chooses among the baselines of a pair.

    Attributes:
        needs_translations: whether evaluations must translate lines of dev.
    """

    needs_translations: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the measure, for messages."""

    @abc.abstractmethod
    def loss(self, scalars: Mapping[str, float]) -> float:
        """What is to be minimized; `scalars` are an evaluation's, by TensorBoard tag."""

    def is_better(self, loss: float, best: float) -> bool:
        """Whether an evaluation with `loss` replaces the best one before it, of loss `best`."""
        return loss < best

    @abc.abstractmethod
    def text(self, loss: float) -> str:
        """The value of the measure as people read it, without its name."""


@dataclasses.dataclass(frozen=True)
class DevLoss(Criterion):
    """The lowest loss on dev, nats per target token."""

    name = "dev loss"

    def loss(self, scalars):
        return scalars["dev/loss"]

    def text(self, loss):
        return f"{loss:.3f}"


@dataclasses.dataclass(frozen=True)
class DevBleu(Criterion):
    """The highest BLEU of the dev sentences that are translated at each evaluation.

    A model of little data may translate better for a long time after its dev loss has begun to
    rise: it becomes too sure of its errors, but makes fewer of them. Needs
    `train.dev_bleu_sentences`. While BLEU is 0, as it may be at the start, each evaluation
    counts as better than the one before.
    """

    name = "dev BLEU"
    needs_translations = True

    def loss(self, scalars):
        return -scalars["dev/bleu"]

    def is_better(self, loss, best):
        return loss < best or loss == best == 0

    def text(self, loss):
        return f"{-loss:.1f}"


@dataclasses.dataclass(frozen=True)
class DevChrf(Criterion):
    """The highest chrF++ of the dev sentences that are translated at each evaluation.

    Unlike BLEU it tells bad translations from worse ones. Needs `train.dev_bleu_sentences`.

    Attributes:
        least_gain: what an evaluation must have more than the best one before. Smaller gains are
            noise, which would put off the end of training.
    """

    least_gain: NonNegativeFloat = 0.1

    name = "dev chrF++"
    needs_translations = True

    def loss(self, scalars):
        return -scalars["dev/chrf"]

    def is_better(self, loss, best):
        return loss < best - self.least_gain

    def text(self, loss):
        return f"{-loss:.1f}"
