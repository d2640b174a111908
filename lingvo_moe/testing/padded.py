"""A dispatcher that needs a ladder on one device too."""

import tensorflow as tf

from lingvo_moe.megablocks.laddered import Laddered, least_rung
from lingvo_moe.moe.dispatch import Dispatched, Einsum, lost
from lingvo_moe.nn.nested_map import NestedMap


class Padded(Laddered):
    """Each expert has places for a rung's load in each group."""

    def dispatch(self, inputs, routing, capacity, experts):
        size, choices = routing.expert.shape[1:]
        room = self.room(size * choices / experts.num_experts, size)
        places = self.of_rung(room)
        outputs, _ = Einsum(groups=self.groups).dispatch(inputs, routing, places, experts)
        most = tf.reduce_max(tf.where(routing.dispatched, routing.position + 1, 0))
        stats = NestedMap(
            rung=least_rung(room, most), lost=lost(routing, routing.position < places)
        )
        return Dispatched(outputs, stats)
