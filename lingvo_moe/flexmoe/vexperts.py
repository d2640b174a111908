"""FlexMoE's vExperts: replicas of experts in slots, more replicas for busier experts.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946.

G groups over all devices, S tokens per group, K choices, A places along the mesh axis of data, D
devices of a placement, X sources: all devices at all places (split like groups), P slots of all
devices, E experts.
"""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.flexmoe.slot_routing import choose_slots, flow_of
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.megablocks.laddered import Laddered
from lingvo_moe.moe.dispatch import Dispatched
from lingvo_moe.moe.holding import Slots
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.annotations import annotate, num_pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class VExperts(Laddered):
    """Each device has slots; each slot holds a replica of an expert, given by a table.

    The gating chooses experts. Flexible routing (see slot_routing) then chooses a device of the
    expert: tokens are distributed evenly over the expert's slots, and stay on their device if it
    has one. They travel and are computed as those of `Dropless`, whose experts are the slots. The
    choice of the slot changes results only by rounding. The table is a tensor of the state:
    training.replicas moves experts, and the compiled step accepts any placement.

    Attributes:
        devices: D, a multiple of the number of pieces into which the mesh splits experts.
        slots_per_device: slots of each device; all devices together have at least E.

    Raises:
        ValueError: no device, or no slot; see also Laddered.
    """

    devices: PositiveInt
    slots_per_device: PositiveInt

    @property
    def num_slots(self) -> int:
        """P."""
        return self.devices * self.slots_per_device

    @property
    def holding(self):
        return Slots(self.devices, self.slots_per_device)

    @property
    def _of_slots(self):
        return Dropless(groups=self.groups, factors=self.factors, rung=self.rung)

    def rows_sent(self, num_experts, choices, group_size, devices):
        """See Dispatcher."""
        return self._of_slots.rows_sent(num_experts, choices, group_size, devices)

    def numbers_sent(self, choices):
        """See Dispatcher."""
        return self._of_slots.numbers_sent(choices)

    def dispatch(self, inputs, routing, capacity, experts):
        """See Dropless; the statistics also hold `source_load`, float32 [D, E]: choices at a
        device, the mean of the places along data, each of which has all slots."""
        slot, loads = self._slots(routing, experts.theta.placement)
        to_slots = routing._replace(expert=slot)
        outputs, stats = self._of_slots.dispatch(inputs, to_slots, capacity, experts)
        return Dispatched(outputs, NestedMap(stats, source_load=loads))

    def _slots(self, routing, placement):
        """The slot of each choice [G, S, K], and `source_load`."""
        num_experts = routing.stats.load.shape[0]
        places, sources = self._places(routing.expert.shape[0])
        expert = tf.where(routing.dispatched, routing.expert, -1)
        expert = annotate(tf.reshape(expert, [sources, -1]), "GS")
        loads = tf.reduce_sum(tf.one_hot(expert, num_experts, dtype=tf.int32), axis=1)
        # Every device needs the loads of all; of the flow it computes what it sends.
        loads = annotate(tf.reshape(loads, [places, self.devices, num_experts]), "...")
        sent = tf.reshape(flow_of(loads, placement), [sources, num_experts, self.devices])
        sent = annotate(sent, "G..")
        slot = choose_slots(expert, tf.range(sources) % self.devices, sent, placement)
        return tf.reshape(slot, routing.expert.shape), tf.reduce_mean(
            tf.cast(loads, tf.float32), axis=0
        )

    def _places(self, groups):
        """A and X."""
        places, pieces = num_pieces("g"), num_pieces("E")
        self._check_mesh(groups, pieces, places)
        return places, places * self.devices

    def check_mesh(self, num_experts, pieces, places, name):
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
