"""Layouts of the weights of a layer's experts.

G groups, S tokens per group, K choices, M model, H hidden, E experts, C column blocks of H columns,
D devices of a placement, P slots of all devices.
"""

import abc
import dataclasses

import numpy as np
import tensorflow as tf

from lingvo_moe.core.layer import Initializer, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.tables import EXPERTS, PLACEMENT, Fixed, TableSpec
from lingvo_moe.gatings.base import Routing


@dataclasses.dataclass(frozen=True)
class Holding(abc.ABC):
    """The layout of experts along the first dimension of their weights."""

    @abc.abstractmethod
    def weights(self, experts: NestedMap) -> NestedMap:
        """The layer's weights for its experts.

        Args:
            experts: WeightSpecs of E experts, E first.

        Returns:
            WeightSpecs: `experts`, and tables that are needed to find an expert.
        """

    @abc.abstractmethod
    def to_expert_index(self, routing: Routing, theta: NestedMap) -> Routing:
        """The routing for evaluation, whose dispatchers know only the index of an expert's weights.

        Args:
            routing: of E experts.
            theta: the layer's weights.

        Returns:
            Routing whose experts are indices along the first dimension of theta.experts.
        """


@dataclasses.dataclass(frozen=True)
class EachOnce(Holding):
    """Equal experts, each once, in order."""

    def weights(self, experts):
        return NestedMap(experts=experts)

    def to_expert_index(self, routing, theta):
        del theta
        return routing


@dataclasses.dataclass(frozen=True)
class ColumnBlocks(Holding):
    """Experts of different sizes as column blocks of one size, in order of experts.

    Activations are elementwise, so an expert of size n is the sum of n blocks.

    Attributes:
        sizes: the number of column blocks of each expert.
    """

    sizes: tuple[int, ...]

    def weights(self, experts):
        """See Holding: the column blocks of all experts, [C, …].

        Raises:
            ValueError: not as many sizes as experts.
        """
        num_experts = next(iter(experts.values())).shape[0]
        if len(self.sizes) != num_experts:
            raise ValueError(
                f"expert_sizes has {len(self.sizes)} sizes, {self.sizes}, for {num_experts} "
                f"experts; give one for each of num_experts, and do not set decoder_num_experts."
            )

        def in_column_blocks(spec):
            shape = (sum(self.sizes), *spec.shape[1:])
            init = spec.init
            if spec.dims[-1] == "M":  # of the outputs, which are summed over the blocks
                init = _OfOutputs(init, self.sizes, len(spec.dims) - 1)
            return dataclasses.replace(spec, shape=shape, init=init)

        return NestedMap(experts=experts.map(in_column_blocks))

    def to_expert_index(self, routing, theta):
        """See Holding: every choice becomes max(sizes) choices, one for each column block.

        For a smaller expert the last ones are not dispatched.
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
    """Replicas of experts in slots of devices; a table among the weights has the placement.

    Attributes:
        devices: D.
        slots_per_device: the slots of each.
    """

    devices: int
    slots_per_device: int

    def weights(self, experts):
        """See Holding: experts in slots [P, …], and `placement` int32 [D, slots of each].

        The initial placement is even, with replicas in neighbouring slots. All replicas of an
        expert start with the same values.

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

        placement = TableSpec(
            table.shape, Fixed(tuple(map(tuple, table.tolist()))), "..", EXPERTS, num_experts
        )
        return NestedMap({EXPERTS: experts.map(in_slots), PLACEMENT: placement})

    def to_expert_index(self, routing, theta):
        """See Holding: all tokens of an expert go to its first slot."""
        experts = tf.range(routing.stats.load.shape[0])
        held = tf.cast(tf.reshape(theta.placement, [-1]) == experts[:, None], tf.int32)
        first = tf.argmax(held, axis=1, output_type=tf.int32)
        return routing._replace(expert=tf.gather(first, routing.expert))


@dataclasses.dataclass(frozen=True)
class _OfOutputs(Initializer):
    """Initial values of the weights of outputs, which are the sum of an expert's column blocks.

    The fan-in is that of the whole expert, n times that of one block.

    Attributes:
        init: of an expert of size 1.
        sizes: n of each expert.
        rest: number of dimensions after that of the column blocks; a scan has one in front too.
    """

    init: Initializer
    sizes: tuple[int, ...]
    rest: int

    def __call__(self, shape, seed):
        scale = tf.constant(np.sqrt(self.shares), tf.float32)
        return self.init(shape, seed) * tf.reshape(scale, [-1, *[1] * self.rest])

    @property
    def shares(self):
        """See Initializer: 1 / n for each block of an expert of size n."""
        return 1.0 / np.repeat(self.sizes, self.sizes)


@dataclasses.dataclass(frozen=True)
class _Replicated(Initializer):
    """Initial values of slots: those of their experts, drawn from the same seed.

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
