"""Dispatch that sends a token once to each node that it uses.

G groups split over all devices, g groups while nodes and experts are split, S tokens per group,
K choices, E experts, N nodes of E / N experts, C capacity of an expert or of a node, M model.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import PositiveFloat, PositiveInt
from lingvo_moe.moe.dispatch import (
    Dispatched,
    Dispatcher,
    combine,
    gather_or_zero,
    in_same_part,
    inverse,
    lost,
    permute,
    slots_of,
)
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.queues import queue_positions
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.annotations import annotate, num_pieces
from lingvo_moe.sbp.gshard import manual


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByNode(Dispatcher):
    """Sends a token once to each of its nodes, which copies it to its experts and sums the results.

    The dispatch of DeepSeek-V3 (arXiv 2412.19437, section 3.2.2) for `NodeLimited`: a token with K
    experts on `kept` nodes is sent `kept` times instead of K times, and as many rows return. Each
    row is sent with K numbers of slots and K weights. All copies are by index in manual regions, as
    in `Gather`.

    A node accepts ceil(kept · C · E / (N · K)) rows of a group, where C is the capacity of an
    expert. So AllToAlls send kept / K of the rows of other dispatchers. First choices are accepted
    first. The statistic `lost` counts the choices of rows that are not accepted. Without a
    capacity, all tokens of a group are accepted.

    Attributes:
        nodes: N; on a mesh each device has one node, or several.
        kept: number of nodes that a token may use; both as in the gating's limit.
        capacity_factor: see `Buffered`.

    Raises:
        ValueError: in `check`, another limit; in `check_pieces` and `dispatch`, a mesh with more
            devices than nodes.
    """

    nodes: PositiveInt
    kept: PositiveInt
    capacity_factor: PositiveFloat | None = 2.0

    def check(self, gating):
        """See Dispatcher."""
        limit = NodeLimited(nodes=self.nodes, kept=self.kept)
        if getattr(gating, "limit", None) != limit:
            raise ValueError(
                f"model.moe.training={self} needs a gating with the same limit, but got {gating}; "
                f"set model.moe.gating=TopK(…, limit={limit})."
            )

    def check_pieces(self, pieces):
        """See Dispatcher."""
        if self.nodes % pieces:
            raise ValueError(
                f"model.moe.training={self} does not fit a mesh that splits experts into {pieces} "
                f"pieces; set nodes to {pieces} or a multiple of it, or change the mesh."
            )

    def rows_sent(self, num_experts, choices, group_size):
        """See Dispatcher."""
        capacity = self.capacity(group_size, num_experts)
        return self.nodes * self._room(num_experts, choices, group_size, capacity)

    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher; the statistic `lost` [] counts choices for which a node had no room."""
        _, size, choices = routing.expert.shape
        num_experts = experts.num_experts
        self.check_pieces(num_pieces("E"))
        exchange = _Exchange(
            nodes=self.nodes,
            num_experts=num_experts,
            room=self._room(num_experts, choices, size, capacity),
            capacity=capacity or size,
        )
        queue, places, computed = exchange.plan(routing)
        sent = [
            annotate(manual(exchange.to_nodes, [x, *queue], [dims, *_QUEUE], "eGCM"), "EgCM")
            for x, dims in ((inputs, "GSM"), (routing.weight, "GSK"))
        ]
        there = manual(exchange.places_to_nodes, [places, *queue], ["GSK.", *_QUEUE], "eGC.")
        there = annotate(there, "EgC.")
        slots = manual(exchange.to_experts, [sent[0], there], ["EgCM", "EgC."], "EgCM")
        rows = tf.reshape(annotate(slots, "EgCM"), [num_experts, -1, inputs.shape[-1]])
        outputs = annotate(tf.reshape(experts.together(rows), slots.shape), "EgCM")
        sums = manual(exchange.to_sums, [outputs, sent[1], there], ["EgCM", "EgCM", "EgC."], "EgCM")
        sums = annotate(annotate(sums, "EgCM"), "eGCM")
        outputs = manual(exchange.to_tokens, [sums, *queue], ["eGCM", *_QUEUE], "GSM")
        return Dispatched(outputs, NestedMap(lost=lost(routing, computed)))

    def _room(self, num_experts, choices, size, capacity):
        """The rows that a node accepts from a group."""
        if capacity is None:
            return size
        exact = self.kept * capacity * num_experts / (self.nodes * choices)
        return min(size, math.ceil(exact))


_QUEUE = ("GSK", "GSK", "GSK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Exchange:
    """The copies between tokens, rows of nodes and slots of experts.

    All methods except `plan` run on one device. If experts are split over d devices, it has
    n = N / d nodes, E / d experts and, while experts are split, g groups.

    Attributes:
        nodes, num_experts: N and E.
        room: rows that a node accepts from a group.
        capacity: rows that an expert accepts from a group.
    """

    nodes: int
    num_experts: int
    room: int
    capacity: int

    def plan(self, routing) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Plans which rows are sent, and where they are copied.

        Returns:
            queue: three tensors [G, S, K] about choices: the node, int32; the position in the
                node's queue, int32; and whether the choice sends the token to the node, bool. The
                first choice of a token on a node does.
            places: int32 [G, S, K, K]; for each sender the slots of the token's choices on that
                node, counted from the last slot, which is 1; 0 for other choices.
            computed: bool [G, S, K], the choices that are computed.
        """
        expert, taken = routing.expert, routing.dispatched
        node = tf.truncatediv(expert, self.num_experts // self.nodes)
        same, first = in_same_part(node, taken)
        position = queue_positions(node, first, self.nodes)
        sender = first & (position < self.room)
        computed = taken & tf.reduce_any(same & sender[..., None, :], axis=-1)
        held, groups = self.num_experts // num_pieces("E"), expert.shape[0] // num_pieces("g")
        group = (np.arange(expert.shape[0], dtype=np.int32) % groups)[:, None, None]
        slot = (tf.math.floormod(expert, held) * groups + group) * self.capacity + routing.position
        from_end = tf.where(computed, held * groups * self.capacity - slot, 0)
        places = tf.where(same & sender[..., None], from_end[..., None, :], 0)
        return [node, position, sender], places, computed

    def to_nodes(self, values, *queue):
        """[G, S, M] -> [N, G, C, M]: the values of sent tokens."""
        slot, choice = slots_of(self.nodes, self.room, *queue)
        rows = permute(tf.reshape(values, [-1, values.shape[-1]]), slot, choice)
        return tf.reshape(rows, [self.nodes, -1, self.room, values.shape[-1]])

    def places_to_nodes(self, places, *queue):
        """int32 [G, S, K, K] -> [N, G, C, K]."""
        _, choice = slots_of(self.nodes, self.room, *queue)
        flat = tf.reshape(places, [-1, places.shape[-1]])
        rows = gather_or_zero(flat, choice)
        return tf.reshape(rows, [self.nodes, -1, self.room, places.shape[-1]])

    def to_experts(self, rows, places):
        """[n, g, C, M] -> [E, g, C, M]: the tokens of each expert."""
        slot, choice = self._slots(places)
        tokens = permute(tf.reshape(rows, [-1, rows.shape[-1]]), slot, choice)
        return tf.reshape(tokens, [-1, rows.shape[1], self.capacity, rows.shape[-1]])

    def to_sums(self, outputs, weight, places):
        """[E, g, C, M] -> [n, g, C, M]: the weighted sums of the experts of a row."""
        slot, choice = self._slots(places)
        flat = tf.reshape(outputs, [-1, outputs.shape[-1]])
        sums = combine(flat, tf.reshape(weight, slot.shape), slot, choice)
        return tf.reshape(sums, [*places.shape[:3], outputs.shape[-1]])

    def to_tokens(self, sums, *queue):
        """[N, G, C, M] -> [G, S, M]: the sum over nodes."""
        slot, choice = slots_of(self.nodes, self.room, *queue)
        ones = tf.cast(tf.reshape(queue[-1], slot.shape), tf.float32)
        outputs = combine(tf.reshape(sums, [-1, sums.shape[-1]]), ones, slot, choice)
        return tf.reshape(outputs, [*queue[0].shape[:2], sums.shape[-1]])

    def _slots(self, places):
        """The slots [rows, K] of each row of the device's nodes, and their inverse."""
        nodes, groups = places.shape[:2]
        total = nodes * (self.num_experts // self.nodes) * groups * self.capacity
        slot = total - tf.reshape(places, [-1, places.shape[-1]])
        return slot, inverse(slot, total)
