"""Dispatch by local gathers (GShard, arXiv 2006.16668, section 3.2's manual partitioning).

G groups split over all devices, g groups while experts are split, S tokens per group, K choices,
E experts split over devices, e experts not split, C capacity, M model.
"""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import PositiveInt
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.on_node import OnNode, on_node_capacity
from lingvo_moe.layers.dispatch import (
    Dispatched,
    Dispatcher,
    Ragged,
    combine,
    inverse,
    permute,
)
from lingvo_moe.sharding.annotations import active, annotate
from lingvo_moe.sharding.partition import manual


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalGather(Dispatcher):
    """Like `Einsum` on many devices, but each device fills its slots by index.

    The compiler does not know that the indices of a group stay within the group, and would gather
    across devices. So the two gathers are in manual regions, which see only one device; the
    compiler partitions the AllToAlls and the experts. This avoids the one-hot products, whose cost
    per token grows with the size of a group.

    Attributes:
        nodes: N; above 1, the routing must be that of `OnNode`, so that all experts of a token are
            on its own device, and there is no AllToAll. An expert gets rows of G / N groups.
    """

    needs_static_shapes = True

    nodes: PositiveInt = 1

    def dispatch(self, inputs, routing, capacity, experts):
        capacity = on_node_capacity(capacity or inputs.shape[1], self.nodes, inputs.shape[1])
        held, nodes, expert = experts.num_experts, self.nodes, routing.expert
        if nodes > 1 and active():  # each device is one node and has its experts alone
            held, nodes = held // nodes, 1
            expert = tf.math.floormod(expert, held)
        choices = (expert, routing.position, routing.dispatched)
        split = "eGCM" if self.nodes == 1 else "EgCM"

        def fill(inputs, *choices):
            slot, choice = slots_of(held, nodes, capacity, *choices)
            rows = permute(tf.reshape(inputs, [-1, inputs.shape[-1]]), slot, choice)
            return tf.reshape(rows, [held, -1, capacity, inputs.shape[-1]])

        def collect(rows, weight, *choices):
            slot, choice = slots_of(held, nodes, capacity, *choices)
            flat = tf.reshape(weight, slot.shape)
            outputs = combine(tf.reshape(rows, [-1, rows.shape[-1]]), flat, slot, choice)
            return tf.reshape(outputs, [*weight.shape[:2], rows.shape[-1]])

        slots = manual(fill, [inputs, *choices], ["GSM", "GSK", "GSK", "GSK"], split)
        expert_inputs = annotate(slots, "EgCM")
        rows = tf.reshape(expert_inputs, [experts.num_experts, -1, inputs.shape[-1]])
        outputs = annotate(tf.reshape(experts.together(rows), slots.shape), "EgCM")
        outputs = annotate(outputs, split)
        outputs = manual(
            collect,
            [outputs, routing.weight, *choices],
            [split, "GSK", "GSK", "GSK", "GSK"],
            "GSM",
        )
        return Dispatched(outputs, NestedMap())


def check_nodes(gating: Gating, dispatcher: Dispatcher) -> None:
    """Checks that `OnNode` and `LocalGather` have the same number of nodes.

    Else two tokens would have the same slot of an expert. `Ragged` has no slots and fits all.

    Raises:
        ValueError: they differ.
    """
    nodes = gating.nodes if isinstance(gating, OnNode) else 1
    room = dispatcher.nodes if isinstance(dispatcher, LocalGather) else 1
    if nodes == room or isinstance(dispatcher, Ragged):
        return
    raise ValueError(
        f"{dispatcher} does not fit moe.gating={gating}: OnNode(…, nodes=N) needs "
        f"moe.dispatcher=LocalGather(nodes=N) or Ragged(), and LocalGather(nodes=N) needs OnNode. "
        f"To keep the tokens of some steps on their node, set moe.gating_dropout instead."
    )


def slots_of(num_experts, nodes, capacity, expert, position, dispatched):
    """The slot of each choice int32 [G·S, K] in [E, G / N, C], and the choice in each slot.

    An expert has rows of every N-th group.

    Args:
        num_experts: E.
        nodes: N.
        capacity: C.
        expert, position: int32 [G, S, K].
        dispatched: bool [G, S, K]; other choices have the slot E · G / N · C.
    """
    groups = expert.shape[0] // nodes
    group = tf.constant([g // nodes for g in range(expert.shape[0])])[:, None, None]
    slot = (expert * groups + group) * capacity + position
    num_slots = num_experts * groups * capacity
    slot = tf.reshape(tf.where(dispatched, slot, num_slots), [-1, expert.shape[-1]])
    return slot, inverse(slot, num_slots)
