"""Learning-rate schedules: policies that map a step to its learning rate."""

import abc
import dataclasses
import math
from typing import Self

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, NonNegativeInt, Params, PositiveInt, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Params, abc.ABC):
    """The learning rate as a function of the step.

    Attributes:
        learning_rate: a factor of all values.
        warmup_steps: number of steps of the warm-up; the subclass says what the rate does in them.
            None means a tenth of train.max_steps.
    """

    learning_rate: NonNegativeFloat
    warmup_steps: NonNegativeInt | None = 0

    @property
    def end(self) -> int | None:
        """The first step with a learning rate of zero; None if there is none."""
        return None

    def over(self, max_steps: int) -> Self:
        """This schedule, with numbers for a run of max_steps instead of fields that are None."""
        if self.warmup_steps is not None:
            return self
        return dataclasses.replace(self, warmup_steps=max_steps // 10)

    @abc.abstractmethod
    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """The learning rate, float32 [], of the step-th step; step is any number [], from 1."""

    def _warmup(self, step):
        """A factor that rises linearly to 1 at warmup_steps, and is 1 afterwards."""
        return tf.minimum(step / (self.warmup_steps or 1), 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """learning_rate / √max(step, warmup_steps): flat for the warm-up, then falling.

    GShard (arXiv 2006.16668, appendix) trains with Adafactor, 1.0 and 10k steps: 0.01 at first.

    Attributes:
        linear_warmup: whether the rate rises linearly from 0 in the warm-up, instead of being flat
            (Vaswani et al. 2017, arXiv 1706.03762).
    """

    learning_rate: NonNegativeFloat = 1.0
    warmup_steps: NonNegativeInt | None = 10_000
    linear_warmup: bool = False

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rate = self.learning_rate * tf.math.rsqrt(tf.maximum(step, self.warmup_steps or 1))
        return rate * self._warmup(step) if self.linear_warmup else rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """A linear rise to learning_rate, which then stays constant."""

    def __call__(self, step):
        return self.learning_rate * self._warmup(tf.cast(step, tf.float32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """A linear rise to learning_rate, then half a cosine wave down (Loshchilov & Hutter 2017).

    Attributes:
        total_steps: last step of the wave; the rate is constant afterwards. None means
            train.max_steps.
        final_fraction: the final rate divided by learning_rate.
    """

    total_steps: PositiveInt | None = None
    final_fraction: Share = 0.0

    def __post_init__(self):
        super().__post_init__()
        total, warmup = self.total_steps, self.warmup_steps or 0
        if total is not None and total <= warmup:
            raise ValueError(
                f"total_steps must be > warmup_steps, got {total}, {warmup}. Lower warmup_steps, "
                f"or set it to None, which means a tenth of train.max_steps."
            )

    @property
    def end(self):
        return None if self.final_fraction else self.total_steps

    def over(self, max_steps):
        total_steps = self.total_steps or max_steps
        return dataclasses.replace(super().over(max_steps), total_steps=total_steps)

    def __call__(self, step):
        if self.total_steps is None or self.warmup_steps is None:
            raise ValueError("The schedule depends on the run; call over(max_steps) first.")
        step = tf.cast(step, tf.float32)
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        wave = 0.5 + 0.5 * tf.cos(math.pi * tf.clip_by_value(done, 0.0, 1.0))
        fraction = self.final_fraction + (1.0 - self.final_fraction) * wave
        return self.learning_rate * fraction * self._warmup(step)
