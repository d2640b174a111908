"""Layouts of the weights of a layer's experts.

G groups, S tokens per group, K choices, M model, H hidden, E experts, D devices of a placement,
P slots of all devices.
"""

import abc
import collections
import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.layer import Initializer, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import EXPERTS, PLACEMENT, Fixed, TableSpec


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

    def shared(self, num_experts: int, devices: int) -> int:
        """How many experts lie on several devices of a mesh, as training begins."""
        del num_experts, devices
        return 0

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

        The initial placement is `even`, with replicas in neighbouring slots. All replicas of an
        expert start with the same values.

        Raises:
            ValueError: fewer slots than experts.
        """
        num_experts = next(iter(experts.values())).shape[0]
        num_slots, table = self.devices * self.slots_per_device, self.even(num_experts)
        if num_slots < num_experts:
            raise ValueError(
                f"{self.devices} devices of {self.slots_per_device} slots have no room for "
                f"{num_experts} experts; raise slots_per_device."
            )

        def in_slots(spec):
            init = _Replicated(spec.init, tuple(table.ravel().tolist()), num_experts)
            return WeightSpec((num_slots, *spec.shape[1:]), init, spec.dims)

        placement = TableSpec(
            table.shape, Fixed(tuple(map(tuple, table.tolist()))), "..", EXPERTS, num_experts
        )
        return NestedMap({EXPERTS: experts.map(in_slots), PLACEMENT: placement})

    def even(self, num_experts: int) -> np.ndarray:
        """int [D, slots of each], the expert in each slot at first."""
        slots = np.arange(self.devices * self.slots_per_device)
        return (slots * num_experts // slots.size).reshape(self.devices, -1)

    def shared(self, num_experts, devices):
        by_device = self.even(num_experts).reshape(devices, -1).tolist()
        held = collections.Counter(itertools.chain.from_iterable(map(set, by_device)))
        return sum(count > 1 for count in held.values())

    def to_expert_index(self, routing, theta):
        """See Holding: all tokens of an expert go to its first slot."""
        experts = tf.range(routing.stats.load.shape[0])
        held = tf.cast(tf.reshape(theta.placement, [-1]) == experts[:, None], tf.int32)
        first = tf.argmax(held, axis=1, output_type=tf.int32)
        return routing._replace(expert=tf.gather(first, routing.expert))


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
