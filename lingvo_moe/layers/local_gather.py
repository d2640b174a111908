"""Dispatch by local gathers (GShard, arXiv 2006.16668, section 3.2's manual partitioning).

G groups split over all devices, g groups while experts are split, S tokens per group, K choices,
E experts split over devices, e experts not split, C capacity, M model.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.layers.dispatch import (
    Dispatched,
    Dispatcher,
    combine,
    inverse,
    permute,
)
from lingvo_moe.sharding.annotations import annotate
from lingvo_moe.sharding.partition import manual


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalGather(Dispatcher):
    """Like `Einsum` on many devices, but each device fills its slots by index.

    The compiler does not know that the indices of a group stay within the group, and would gather
    across devices. So the two gathers are in manual regions, which see only one device; the
    compiler partitions the AllToAlls and the experts. This avoids the one-hot products, whose cost
    per token grows with the size of a group.
    """

    needs_static_shapes = True

    def dispatch(self, inputs, routing, capacity, experts):
        num_experts, capacity = experts.num_experts, capacity or inputs.shape[1]
        choices = (routing.expert, routing.position, routing.dispatched)

        def fill(inputs, *choices):
            slot, choice = slots_of(num_experts, capacity, *choices)
            rows = permute(tf.reshape(inputs, [-1, inputs.shape[-1]]), slot, choice)
            return tf.reshape(rows, [num_experts, -1, capacity, inputs.shape[-1]])

        def collect(rows, weight, *choices):
            slot, choice = slots_of(num_experts, capacity, *choices)
            flat = tf.reshape(weight, slot.shape)
            outputs = combine(tf.reshape(rows, [-1, rows.shape[-1]]), flat, slot, choice)
            return tf.reshape(outputs, [*weight.shape[:2], rows.shape[-1]])

        slots = manual(fill, [inputs, *choices], ["GSM", "GSK", "GSK", "GSK"], "eGCM")
        expert_inputs = annotate(slots, "EgCM")
        rows = tf.reshape(expert_inputs, [num_experts, -1, inputs.shape[-1]])
        outputs = annotate(tf.reshape(experts.together(rows), slots.shape), "EgCM")
        outputs = annotate(outputs, "eGCM")
        outputs = manual(
            collect,
            [outputs, routing.weight, *choices],
            ["eGCM", "GSK", "GSK", "GSK", "GSK"],
            "GSM",
        )
        return Dispatched(outputs, NestedMap())


def slots_of(num_experts, capacity, expert, position, dispatched):
    """The slot of each choice int32 [G·S, K] in [E, G, C], and the choice in each slot.

    Args:
        num_experts: E.
        capacity: C.
        expert, position: int32 [G, S, K].
        dispatched: bool [G, S, K]; other choices have the slot E · G · C.
    """
    groups = expert.shape[0]
    group = np.arange(groups, dtype=np.int32)[:, None, None]
    slot = (expert * groups + group) * capacity + position
    num_slots = num_experts * groups * capacity
    slot = tf.reshape(tf.where(dispatched, slot, num_slots), [-1, expert.shape[-1]])
    return slot, inverse(slot, num_slots)
