"""Dropless dispatch with static shapes: a ladder of capacities.

G groups over all devices, S tokens per group, K choices, E experts, C capacity, M model.
"""

import abc
import dataclasses
import math

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeInt, PositiveFloat
from lingvo_moe.moe.dispatch import Dispatched, Dispatcher, Gather, lost
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laddered(Dispatcher):
    """A dispatcher with static shapes, for one rung of a ladder of capacities.

    Each rung is a separate program. A step reports the rung that it needed (the statistic `rung`).
    If that is higher than the program's rung, the step changes nothing and runs again on the higher
    rung (training.step, training.ladder). So the size of buffers follows the load, without a
    capacity_factor.

    Attributes:
        factors: room of the rungs, in multiples of the load at perfect balance, ascending; one more
            rung above them has room for any load.
        rung: the rung of this program, from 0; None for the last, which fits any load.

    Raises:
        ValueError: factors that are not positive and ascending, or an unknown rung.
    """

    factors: tuple[PositiveFloat, ...] = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
    rung: NonNegativeInt | None = None

    def __post_init__(self):
        super().__post_init__()
        below = (0.0, *self.factors)
        if not all(low < high < math.inf for low, high in zip(below, self.factors, strict=False)):
            raise ValueError(f"factors must be positive and ascending, got {self.factors}.")
        if self.rung is not None and not 0 <= self.rung <= len(self.factors):
            raise ValueError(
                f"rung must be from 0 to {len(self.factors)}, the number of factors, or None for "
                f"the last rung; got {self.rung}."
            )

    @property
    def rungs(self):
        """This dispatcher on each rung, with ascending room; the last has room for any load."""
        count = len(self.factors) + 1
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
        return [max(1, min(most, math.ceil(factor * load))) for factor in self.factors] + [most]

    def of_rung(self, room: list[int]) -> int:
        """The room on this rung."""
        return room[-1 if self.rung is None else self.rung]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(Laddered):
    """`Gather` with a capacity that fits the busiest expert of a group: no token is dropped.

    Dropless experts on many devices, with two AllToAlls over the mesh axis of the experts. Without
    such an axis every device runs all experts on its own groups.
    """

    def dispatch(self, inputs, routing, capacity, experts):
        del capacity
        _, tokens, choices = routing.expert.shape
        num_experts = experts.num_experts
        room = self.room(tokens * choices / num_experts, tokens)
        capacity = self.of_rung(room)
        queue = tf.where(routing.dispatched, routing.position + 1, 0)
        fits = routing.position < capacity
        stats = NestedMap(
            rung=least_rung(room, tf.reduce_max(queue)),
            capacity=tf.constant(capacity, tf.float32),
            lost=lost(routing, fits),
        )
        routing = within(routing, fits)
        dispatched = Gather().dispatch(inputs, routing, capacity, experts)
        return Dispatched(dispatched.outputs, stats)


def least_rung(room: list[int], load: tf.Tensor) -> tf.Tensor:
    """float32 []: the lowest rung with room for the load []."""
    return tf.reduce_sum(tf.cast(load > tf.constant(room[:-1], load.dtype), tf.float32))


def within(routing: Routing, fits: tf.Tensor) -> Routing:
    """The routing without choices that do not fit, which would overwrite other places."""
    return routing._replace(
        weight=tf.where(fits, routing.weight, 0.0), dispatched=routing.dispatched & fits
    )
