"""Hash routing.  G groups, S tokens per group, E experts."""

import dataclasses

import tensorflow as tf

from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hash(Gating):
    """Each token goes to the expert that a fixed random hash of its id names, with weight 1.

    Roller et al. 2021 (arXiv 2106.04426), random hash. Nothing is learned: of the logits only
    their number E counts, and aux_loss reads 1.0 whatever the load, since nothing can lower it. A
    frequent token always loads the same expert, so `load` is as even as the vocabulary's
    frequencies allow. Tokens queue in their order. All layers of a model hash alike.

    Attributes:
        seed: names the hash function.
    """

    seed: int = 0

    def route(self, logits, mask, capacity, context, token_ids=None):
        """As in Gating.

        Raises:
            ValueError: there are no token_ids.
        """
        del context
        if token_ids is None:
            raise ValueError(
                "Hash got token_ids None, and routes by them; pass them to fprop or choose a "
                "gating that routes by logits, such as Switch."
            )
        expert = _mix(token_ids, self.seed) % logits.shape[-1]  # [G, S]
        weight = tf.ones_like(expert, tf.float32)
        # Even gates for a balance loss of 1; 0 · logits, for a gradient that is zero, not missing.
        even = tf.nn.softmax(0.0 * logits)
        return route_choices(even, expert[..., None], weight[..., None], mask, capacity)


def _mix(ids: tf.Tensor, seed: int) -> tf.Tensor:
    """Pseudo-random int32 in [0, 2³¹) from int32 ids: MurmurHash3's finalizer, twice.

    In uint32, whose products wrap by definition; the last shift leaves what int32 can hold.
    """
    x = tf.cast(ids, tf.uint32)
    for key in (seed % 2**32, 0x9E3779B9):  # two rounds, or small ids would show the seed's bits
        x = tf.bitwise.bitwise_xor(x, tf.constant(key, tf.uint32))
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = _fold(x, shift) * tf.constant(factor, tf.uint32)
        x = _fold(x, 16)
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(1, tf.uint32)), tf.int32)


def _fold(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
