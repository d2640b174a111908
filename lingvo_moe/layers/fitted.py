"""Static shapes that fit: a ladder of capacities on which no token is lost.

G groups over all devices, S tokens per group, K choices, E experts, C capacity, M model.
"""

import abc
import dataclasses
import math

import tensorflow as tf

from lingvo_moe.core.fields import NonNegativeInt, PositiveFloat
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Routing
from lingvo_moe.layers.dispatch import Dispatched, Dispatcher, lost
from lingvo_moe.layers.local_gather import LocalGather


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laddered(Dispatcher):
    """A dispatcher of static shapes on one rung of a ladder of capacities.

    Each rung is a program of its own. A step says which rung it needed (the statistic `rung`), and
    a step that needed a higher one than its own changes nothing and is taken again there
    (train.step, train.ladder). So capacity_factor is None, and yet buffers follow the load.

    Attributes:
        factors: room on the rungs, in multiples of the load at perfect balance, ascending; above
            them is one rung with room for any load.
        rung: of this program, from 0; None for the last, which fits any load.

    Raises:
        ValueError: factors that do not ascend from above 0, or no such rung.
    """

    factors: tuple[PositiveFloat, ...] = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
    rung: NonNegativeInt | None = None

    def __post_init__(self):
        super().__post_init__()
        below = (0.0, *self.factors)
        if not all(low < high < math.inf for low, high in zip(below, self.factors, strict=False)):
            raise ValueError(f"factors must ascend from above 0, got {self.factors}.")
        if self.rung is not None and not 0 <= self.rung <= len(self.factors):
            raise ValueError(
                f"rung must be from 0 to {len(self.factors)}, one above the last of {self.factors},"
                f" or None for that; got {self.rung}."
            )

    @property
    def rungs(self) -> tuple["Laddered", ...]:
        """This dispatcher with ever more room, the last with room for anything."""
        count = len(self.factors) + 1
        return tuple(dataclasses.replace(self, rung=rung) for rung in range(count))

    @abc.abstractmethod
    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher. The statistics hold `rung`, float32 [], the least one that suffices; on
        a lower one choices are `lost`."""

    def room(self, load: float, most: int) -> list[int]:
        """The places of a buffer on each rung.

        Args:
            load: how many it holds at perfect balance.
            most: how many it can ever hold.
        """
        return [max(1, min(most, math.ceil(factor * load))) for factor in self.factors] + [most]

    def of_rung(self, room: list[int]) -> int:
        """This rung's."""
        return room[-1 if self.rung is None else self.rung]

    def _check(self, capacity):
        if capacity is not None:
            raise ValueError(
                f"{type(self).__name__} loses no token, but moe.capacity_factor lets the gating "
                f"turn some away first; pass --set=model.moe.capacity_factor=None."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(Laddered):
    """`LocalGather` whose capacity fits the busiest expert of a group, so that none is dropped.

    Dropless experts on many devices: two AllToAlls over the mesh axis of the experts, if it has
    one; else every device runs all experts on its own groups.
    """

    def dispatch(self, inputs, routing, capacity, experts):
        """See Laddered."""
        self._check(capacity)
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
        dispatched = LocalGather().dispatch(inputs, routing, capacity, experts)
        return Dispatched(dispatched.outputs, stats)


def rungs_of(dispatcher: Dispatcher) -> tuple[Laddered, ...]:
    """The dispatcher on each of its rungs; () for one that is on no ladder."""
    return dispatcher.rungs if isinstance(dispatcher, Laddered) else ()


def least_rung(room: list[int], load: tf.Tensor) -> tf.Tensor:
    """float32 []: the lowest rung whose room, the last one's included, holds the load []."""
    return tf.reduce_sum(tf.cast(load > tf.constant(room[:-1], load.dtype), tf.float32))


def within(routing: Routing, fits: tf.Tensor) -> Routing:
    """Without the choices that do not fit, which would be written over others' places."""
    return routing._replace(
        weight=tf.where(fits, routing.weight, 0.0), dispatched=routing.dispatched & fits
    )
