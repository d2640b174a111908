"""Static shapes for any load: a ladder of programs with more and more room."""

import abc
import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeInt, PositiveFloat
from lingvo_moe.moe.dispatch import Dispatcher

# Up to 1,000 times the load at balance, the buffer that decides the rung has at most 1.25 times the
# room that it needs; other buffers and layers of this rung may have more.
_FACTORS = tuple(1.25**power for power in range(1, 32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laddered(Dispatcher):
    """A dispatcher with static shapes, for one rung of a ladder of sizes.

    Each rung is a separate program. A step reports the rung that it needed (the statistic `rung`).
    If that is higher than the program's rung, the step changes nothing and runs again on the higher
    rung (training.step, training.ladder). So the size of buffers follows the load, without a
    capacity_factor.

    Attributes:
        factors: room of the rungs, in multiples of the load at perfect balance, ascending; one more
            rung above them has room for any load. None for powers of 1.25.
        rung: the rung of this program, from 0; None for the last, which fits any load.

    Raises:
        ValueError: factors that are not positive and ascending, or an unknown rung.
    """

    factors: tuple[PositiveFloat, ...] | None = None
    rung: NonNegativeInt | None = None

    def __post_init__(self):
        super().__post_init__()
        factors = self._factors
        if not all(
            low < high < math.inf for low, high in zip((0.0, *factors), factors, strict=False)
        ):
            raise ValueError(f"factors must be positive and ascending, got {factors}.")
        if self.rung is not None and not 0 <= self.rung <= len(factors):
            raise ValueError(
                f"rung must be from 0 to {len(factors)}, the number of factors, or None for "
                f"the last rung; got {self.rung}."
            )

    @property
    def _factors(self):
        return _FACTORS if self.factors is None else self.factors

    @property
    def rungs(self):
        """This dispatcher on each rung, with ascending room; the last has room for any load."""
        count = len(self._factors) + 1
        return tuple(dataclasses.replace(self, rung=rung) for rung in range(count))

    @abc.abstractmethod
    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher. The statistic `rung`, float32 [], is the lowest one with enough room; on
        a lower one choices are `lost`."""

    def room(self, load: float, most: int) -> list[int]:
        """The size of a buffer on each rung.

        Args:
            load: its load at perfect balance.
            most: its largest possible load.
        """
        return rooms(load, most, self._factors)

    def of_rung(self, room: list[int]) -> int:
        """The room on this rung."""
        return room[-1 if self.rung is None else self.rung]


def rooms(load: float, most: int, factors: Sequence[float] = _FACTORS) -> list[int]:
    """The size of a buffer on each rung; see Laddered.room."""
    return [max(1, min(most, math.ceil(factor * load))) for factor in factors] + [most]


def least_rung(room: list[int], load: tf.Tensor) -> tf.Tensor:
    """float32 []: the lowest rung with room for the load []."""
    return tf.reduce_sum(tf.cast(load > tf.constant(room[:-1], load.dtype), tf.float32))
