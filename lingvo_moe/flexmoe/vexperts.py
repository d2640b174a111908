"""FlexMoE's vExperts: replicas of experts in slots, more replicas for busier experts.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946.

G groups over all devices, S tokens per group, K choices, M model, A places along the mesh axis of
data, D devices of a placement, X sources: all devices at all places (split like groups, or over A
alone while experts are split), P slots of all devices, p slots of the local devices, E experts,
C places of the buffer from a source to a slot, R rows of a slot.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.flexmoe.slot_routing import Flow, choose_slots, counts_of, flow_of
from lingvo_moe.megablocks.laddered import Laddered, least_rung
from lingvo_moe.moe.dispatch import Dispatched, combine, inverse, permute
from lingvo_moe.moe.holding import Slots
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.annotations import annotate, num_pieces
from lingvo_moe.sbp.gshard import manual


@dataclasses.dataclass(frozen=True, kw_only=True)
class VExperts(Laddered):
    """Each device has slots; each slot holds a replica of an expert, given by a table.

    The gating chooses experts. Flexible routing (see slot_routing) then chooses a slot of the
    expert: tokens are distributed evenly over the expert's slots, and stay on their device if it
    has one. No token is dropped; the choice of the slot changes results only by rounding. The table
    is a tensor of the state: training.replicas moves experts, and the compiled step accepts any
    placement.

    Tokens that stay on their device are not sent. Other tokens are sent in buffers of C places for
    each pair of source and slot, and packed into R rows of the slot. So the time depends on the
    busiest slot, and not on the busiest pair.

    Attributes:
        devices: D, a multiple of the number of pieces into which the mesh splits experts.
        slots_per_device: slots of each device; all devices together have at least E.
        wire: factor on the room of a buffer, relative to a source's even share of a slot's rows,
            because loads of sources differ more than loads of slots.

    Raises:
        ValueError: no device, no slot, or wire below 1; see also Laddered.
    """

    devices: PositiveInt
    slots_per_device: PositiveInt
    wire: float = 2.0

    def __post_init__(self):
        super().__post_init__()
        if self.wire < 1:
            raise ValueError(f"wire must be >= 1, got {self.wire}.")

    @property
    def num_slots(self) -> int:
        """P."""
        return self.devices * self.slots_per_device

    @property
    def holding(self):
        return Slots(self.devices, self.slots_per_device)

    def dispatch(self, inputs, routing, capacity, experts):
        """See Laddered; the statistics also hold `source_load`, float32 [D, E], choices."""
        del capacity
        plan = self._plan(routing, experts.theta.placement)
        tokens = annotate(tf.reshape(inputs, [plan.sources, -1, inputs.shape[-1]]), "GSM")
        weight = tf.reshape(routing.weight, plan.routed.shape[:3])
        of_slot = [plan.arriving, plan.first_row]
        sent = manual(plan.fill, [tokens, plan.routed], ["GSM", "GSK."], "eGCM")
        rows = manual(
            plan.pack,
            [annotate(sent, "EgCM"), tokens, plan.routed, *of_slot],
            ["EgCM", "GSM", "GSK.", "Eg", "Eg"],
            "Eg.M",
        )
        flat = tf.reshape(rows, [self.num_slots, -1, inputs.shape[-1]])
        rows = annotate(tf.reshape(experts.together(flat), rows.shape), "Eg.M")
        back = manual(plan.unpack, [rows, *of_slot], ["Eg.M", "Eg", "Eg"], "EgCM")
        outputs = manual(
            plan.collect,
            [annotate(back, "eGCM"), rows, weight, plan.routed],
            ["eGCM", "Eg.M", "GSK", "GSK."],
            "GSM",
        )
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), plan.stats)

    def _plan(self, routing, placement):
        num_experts = routing.stats.load.shape[0]
        groups, size, choices = routing.expert.shape
        places, sources = self._places(groups)
        size *= groups // sources
        expert = tf.where(routing.dispatched, routing.expert, -1)
        expert = annotate(tf.reshape(expert, [sources, size * choices]), "GS")
        loads = tf.reduce_sum(tf.one_hot(expert, num_experts, dtype=tf.int32), axis=1)
        # Small tensors; every device computes all of them.
        loads = _replicate(tf.reshape(loads, [places, self.devices, num_experts]))
        counts = counts_of(placement, num_experts)
        flow = Flow(*map(_replicate, flow_of(loads, counts)))
        arriving = _replicate(flow.by_slot * self._between_devices)
        first_row = _replicate(tf.cumsum(flow.by_slot, axis=2, exclusive=True))
        routed = self._routed(expert, flow, counts, first_row)
        wire = self.room(self.wire * size * choices / self.num_slots, size)
        wire = [max(2, room) for room in wire]  # XLA's compiler for CPUs crashes with one place
        rows = self.room(self.devices * size * choices / self.num_slots, self.devices * size)
        stats = NestedMap(
            rung=tf.maximum(
                least_rung(wire, tf.reduce_max(arriving)),
                least_rung(rows, tf.reduce_max(tf.reduce_sum(flow.by_slot, axis=2))),
            ),
            capacity=tf.constant(self.of_rung(rows), tf.float32),
            source_load=tf.cast(tf.reduce_sum(loads, axis=0), tf.float32),
            lost=_over(arriving, self.of_rung(wire))
            + _over(tf.reduce_sum(flow.by_slot, axis=2), self.of_rung(rows)),
        )
        return _Exchange(
            sources=sources,
            routed=annotate(tf.reshape(routed, [sources, size, choices, 3]), "GSK."),
            arriving=tf.reshape(arriving, [self.num_slots, sources]),
            first_row=tf.reshape(first_row, [self.num_slots, sources]),
            wire=self.of_rung(wire),
            rows=self.of_rung(rows),
            slots=self.num_slots,
            per_device=self.slots_per_device,
            stats=stats,
        )

    def _routed(self, expert, flow, counts, first_row):
        """`routed` of a _Exchange, int32 [X, S·K, 3]."""
        sources = expert.shape[0]
        device = tf.range(sources) % self.devices
        of_source = [sources, flow.sent.shape[2], self.devices]
        sent, first = (tf.reshape(x, of_source) for x in (flow.sent, flow.first))
        slot, position = choose_slots(expert, device, sent, first, counts)
        row = tf.gather(self._own(first_row), slot % self.slots_per_device, batch_dims=1)
        stays = slot // self.slots_per_device == device[:, None]
        return tf.stack([slot, position, tf.where(stays, row + position, -1)], axis=-1)

    @property
    def _between_devices(self):
        """int32 [P, 1, D]: 1 where a slot and a source are on different devices."""
        apart = 1 - np.eye(self.devices, dtype=np.int32)
        return np.repeat(apart, self.slots_per_device, axis=0)[:, None, :]

    def _own(self, by_slot):
        """int32 [P, A, D] -> [X, slots of a device]: of each source's own slots."""
        own = tf.reduce_sum(by_slot * (1 - self._between_devices), axis=2)
        own = tf.reshape(own, [self.devices, self.slots_per_device, -1])
        return tf.reshape(tf.transpose(own, [2, 0, 1]), [-1, self.slots_per_device])

    def _places(self, groups):
        """A and X."""
        places, pieces = num_pieces("g"), num_pieces("E")
        self._check_mesh(groups, pieces, places)
        return places, places * self.devices

    def check_mesh(self, num_experts, pieces, places):
        """See Dispatcher; the experts are in slots, so their number may be any."""
        self._check_mesh(self.groups, pieces, places)

    def _check_mesh(self, groups, pieces, places):
        if self.devices % pieces:
            raise ValueError(
                f"VExperts has devices={self.devices}, which must be a multiple of the {pieces} "
                f"pieces into which the mesh splits experts; change devices, or the mesh."
            )
        if groups % (places * self.devices):
            raise ValueError(
                f"{groups} groups do not divide evenly into {places * self.devices} sources "
                f"({places} along data, {self.devices} devices); set "
                f"model.moe.training.groups to a multiple."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Exchange:
    """The slot of every choice, and the four copies between tokens, buffers and rows.

    The copies see the pieces of one device: s sources and their p slots, which receive from X
    sources.

    Attributes:
        routed: int32 [X, S, K, 3]: a choice's slot (P for none), its index among the choices from
            its source for this slot, and its row if the slot is on its own device, else -1.
        arriving: int32 [P, X], choices that each slot gets from each source on another device.
        first_row: int32 [P, X], the row of the first choice from each source.
        sources, wire, rows, slots, per_device: X, C, R, P, and the slots of a device.
        stats: the statistics of `dispatch`.
    """

    sources: int
    routed: tf.Tensor
    arriving: tf.Tensor
    first_row: tf.Tensor
    wire: int
    rows: int
    slots: int
    per_device: int
    stats: NestedMap

    def fill(self, tokens, routed):
        """Tokens [s, S, M] that leave, in buffers [P, s, C, M]."""
        place = self._buffer_places(routed)
        choice = inverse(place, self.slots * tokens.shape[0] * self.wire)
        rows = permute(_flat(tokens), place, choice)
        return tf.reshape(rows, [self.slots, tokens.shape[0], self.wire, tokens.shape[-1]])

    def pack(self, arrived, tokens, routed, arriving, first_row):
        """Received tokens [p, X, C, M] and tokens [s, S, M] that stay, in rows [p, 1, R, M]."""
        row, local = self._received_rows(arriving, first_row), self._local_rows(routed)
        slots = arriving.shape[0]
        packed = permute(_flat(arrived), row, inverse(row, slots * self.rows))
        packed += permute(_flat(tokens), local, inverse(local, slots * self.rows))
        return tf.reshape(packed, [slots, 1, self.rows, tokens.shape[-1]])

    def unpack(self, rows, arriving, first_row):
        """Rows [p, 1, R, M] that return, in buffers [p, X, C, M]."""
        row = self._received_rows(arriving, first_row)
        place = inverse(row, arriving.shape[0] * self.rows)[:, None]
        buffers = permute(_flat(rows), place, row[:, 0])
        return tf.reshape(buffers, [*arriving.shape, self.wire, rows.shape[-1]])

    def collect(self, back, rows, weight, routed):
        """Weighted sums [s, S, M] of returned rows [P, s, C, M] and local rows [p, 1, R, M]."""
        flat = tf.reshape(weight, [-1, weight.shape[-1]])
        outputs = 0.0
        for values, place in (
            (_flat(back), self._buffer_places(routed)),
            (_flat(rows), self._local_rows(routed)),
        ):
            outputs += combine(values, flat, place, inverse(place, values.shape[0]))
        return tf.reshape(outputs, [*weight.shape[:2], rows.shape[-1]])

    def _buffer_places(self, routed):
        """int32 [s·S, K]: the place in [P, s, C] of each sent choice; P·s·C for others."""
        slot, position, row = tf.unstack(routed, axis=-1)
        sources = routed.shape[0]
        begin = (np.arange(sources) * self.wire)[:, None, None]
        leaves = (slot < self.slots) & (position < self.wire) & (row < 0)
        place = slot * (sources * self.wire) + begin + position
        return _by_token(tf.where(leaves, place, self.slots * sources * self.wire))

    def _local_rows(self, routed):
        """int32 [s·S, K]: the row in [p, R] of each choice that stays; p·R for others."""
        slot, _, row = tf.unstack(routed, axis=-1)
        sources, own_rows = routed.shape[0], self.per_device * self.rows
        begin = (np.arange(sources) * own_rows)[:, None, None]
        place = begin + slot % self.per_device * self.rows + row
        return _by_token(tf.where((row >= 0) & (row < self.rows), place, sources * own_rows))

    def _received_rows(self, arriving, first_row):
        """int32 [p·X·C, 1]: the row in [p, R] of each place of a buffer; p·R if empty."""
        slots = arriving.shape[0]
        count = np.arange(1, self.wire + 1)  # number of places up to each place
        row = first_row[..., None] + count - 1
        begin = (np.arange(slots) * self.rows)[:, None, None]
        filled = (count <= arriving[..., None]) & (row < self.rows)
        return tf.reshape(tf.where(filled, begin + row, slots * self.rows), [-1, 1])


def _over(load: tf.Tensor, room: int) -> tf.Tensor:
    """float32 []: the sum of the loads above `room`."""
    return tf.reduce_sum(tf.cast(tf.maximum(load - room, 0), tf.float32))


def _flat(rows: tf.Tensor) -> tf.Tensor:
    return tf.reshape(rows, [-1, rows.shape[-1]])


def _replicate(tensor: tf.Tensor) -> tf.Tensor:
    """The same tensor, held by every device."""
    return annotate(tensor, "." * tensor.shape.rank)


def _by_token(places: tf.Tensor) -> tf.Tensor:
    """[s, S, K] -> [s·S, K]."""
    return tf.reshape(places, [-1, places.shape[-1]])
