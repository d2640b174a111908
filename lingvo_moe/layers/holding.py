"""How a layer holds its experts.

G groups, S tokens per group, K choices, M model, H hidden, E experts, C column blocks of H columns,
D devices of a placement, P slots of all devices.
"""

import abc
import dataclasses

import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Initializer, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.tables import Fixed, TableSpec
from lingvo_moe.gatings.base import Routing


@dataclasses.dataclass(frozen=True)
class Holding(abc.ABC):
    """What lies along the first dimension of the experts' weights."""

    @abc.abstractmethod
    def weights(self, experts: NestedMap) -> NestedMap:
        """The layer's weights for its experts.

        Args:
            experts: WeightSpecs of E experts, E first.

        Returns:
            WeightSpecs: `experts`, and what else is needed to find one.
        """

    @abc.abstractmethod
    def to_expert_index(self, routing: Routing, theta: NestedMap) -> Routing:
        """The same choices for a dispatcher that takes each place for an expert: in evaluation.

        Args:
            routing: of E experts.
            theta: the layer's weights.

        Returns:
            Routing whose experts are places along the first dimension of theta.experts.
        """


@dataclasses.dataclass(frozen=True)
class EachOnce(Holding):
    """Experts of one size, each once, in their order."""

    def weights(self, experts):
        """See Holding."""
        return NestedMap(experts=experts)

    def to_expert_index(self, routing, theta):
        """See Holding."""
        del theta
        return routing


@dataclasses.dataclass(frozen=True)
class ColumnBlocks(Holding):
    """Experts of different sizes as column blocks of one size, side by side in order of experts.

    Activations work element by element, so an expert of size n is the sum of n blocks.

    Attributes:
        sizes: the column blocks of each expert.
    """

    sizes: tuple[int, ...]

    def weights(self, experts):
        """See Holding: the column blocks of all experts, [C, …].

        Raises:
            ValueError: another number of sizes than of experts.
        """
        num_experts = next(iter(experts.values())).shape[0]
        if len(self.sizes) != num_experts:
            raise ValueError(
                f"expert_sizes gives {len(self.sizes)} sizes, {self.sizes}, to {num_experts} "
                f"experts; give as many as num_experts, and leave decoder_num_experts alone."
            )

        def in_column_blocks(spec):
            shape = (sum(self.sizes), *spec.shape[1:])
            fan_in_is_hidden = spec.dims[1] == "H"
            init = _WholeFanIn(spec.init, self.sizes) if fan_in_is_hidden else spec.init
            return dataclasses.replace(spec, shape=shape, init=init)

        return NestedMap(experts=experts.map(in_column_blocks))

    def to_expert_index(self, routing, theta):
        """See Holding: every choice becomes one of each column block of its expert.

        There are max(sizes) choices for one, of which smaller experts do not take the last.
        """
        del theta
        sizes, most = np.array(self.sizes), max(self.sizes)
        nth = np.arange(most)
        first = (np.cumsum(sizes) - sizes)[:, None]
        column = tf.constant(np.minimum(first + nth, sum(sizes) - 1), tf.int32)  # [E, most]
        taken = routing.dispatched[..., None] & tf.gather(nth < sizes[:, None], routing.expert)
        by_block = tf.concat([tf.shape(taken)[:2], [routing.expert.shape[-1] * most]], axis=0)

        def of_blocks(by_choice):  # [G, S, K, most or 1] -> [G, S, K · most]
            return tf.reshape(tf.broadcast_to(by_choice, tf.shape(taken)), by_block)

        return routing._replace(
            expert=of_blocks(tf.gather(column, routing.expert)),
            position=of_blocks(routing.position[..., None]),
            weight=of_blocks(tf.where(taken, routing.weight[..., None], 0.0)),
            dispatched=of_blocks(taken),
        )


@dataclasses.dataclass(frozen=True)
class Slots(Holding):
    """Replicas of experts in slots of devices; a table among the weights says which is where.

    Attributes:
        devices: D.
        slots_per_device: the slots of each.
    """

    devices: int
    slots_per_device: int

    def weights(self, experts):
        """See Holding: experts in slots [P, …], and `placement` int32 [D, slots of each].

        Experts begin with equally many slots, or one fewer, replicas side by side; a replica begins
        as its expert would.

        Raises:
            ValueError: fewer slots than experts.
        """
        num_experts = next(iter(experts.values())).shape[0]
        num_slots = self.devices * self.slots_per_device
        if num_slots < num_experts:
            raise ValueError(
                f"{self.devices} devices of {self.slots_per_device} slots have no room for "
                f"{num_experts} experts; raise slots_per_device."
            )
        even = np.arange(num_slots) * num_experts // num_slots
        table = even.reshape(self.devices, self.slots_per_device)

        def in_slots(spec):
            init = _Replicated(spec.init, tuple(even.tolist()), num_experts)
            return WeightSpec((num_slots, *spec.shape[1:]), init, spec.dims)

        # The letter e is that of what routers need: never cut, never cast.
        placement = TableSpec(
            table.shape, Fixed(tuple(map(tuple, table.tolist()))), "e.", "experts", num_experts
        )
        return NestedMap(experts=experts.map(in_slots), placement=placement)

    def to_expert_index(self, routing, theta):
        """See Holding: all tokens of an expert go to its first slot."""
        experts = tf.range(routing.stats.load.shape[0])
        held = tf.cast(tf.reshape(theta.placement, [-1]) == experts[:, None], tf.int32)
        first = tf.argmax(held, axis=1, output_type=tf.int32)
        return routing._replace(expert=tf.gather(first, routing.expert))


@dataclasses.dataclass(frozen=True)
class _WholeFanIn(Initializer):
    """Column blocks whose fan-in is that of their whole expert, n times that of one block.

    Attributes:
        init: of an expert of size 1.
        expert_sizes: n of each expert.
    """

    init: Initializer
    expert_sizes: tuple[int, ...]

    def __call__(self, shape, seed):
        size = np.repeat(self.expert_sizes, self.expert_sizes)  # [C]
        return self.init(shape, seed) * tf.constant(size[:, None, None] ** -0.5, tf.float32)


@dataclasses.dataclass(frozen=True)
class _Replicated(Initializer):
    """Weights of slots that begin as their experts would, drawn from the same seed.

    Attributes:
        init: of the experts.
        experts: the expert in each slot.
        num_experts: E.
    """

    init: Initializer
    experts: tuple[int, ...]
    num_experts: int

    def __call__(self, shape, seed):
        return tf.gather(self.init((self.num_experts, *shape[1:]), seed), self.experts)
