"""Hash routing.  G groups, S tokens per group, E experts."""

import dataclasses

import tensorflow as tf

from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hash(Gating):
    """Each token goes to the expert given by a fixed random hash of its id, with weight 1.

    Roller et al. 2021 (arXiv 2106.04426), random hash. Nothing is learned: only the number of
    logits, E, is used, and aux_loss is the constant 1.0. All tokens with the same id go to the same
    expert, so the balance depends on the frequencies of tokens. Tokens queue in their order. All
    layers of a model use the same hash.

    Attributes:
        seed: selects the hash function.
    """

    seed: int = 0

    @property
    def choices_per_token(self):
        return 1

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        """As in Gating.

        Raises:
            ValueError: the extras have no token_ids.
        """
        del context
        if extras.token_ids is None:
            raise ValueError(
                "Hash routes by token ids, but got token_ids=None; pass them to fprop or choose a "
                "gating that routes by logits, such as Switch."
            )
        expert = _mix(extras.token_ids, self.seed) % logits.shape[-1]  # [G, S]
        weight = tf.ones_like(expert, tf.float32)
        # Even gates for a balance loss of 1; 0 · logits, for a gradient that is zero, not missing.
        even = tf.nn.softmax(0.0 * logits)
        return route_choices(even, expert[..., None], weight[..., None], mask, capacity)


def _mix(ids: tf.Tensor, seed: int) -> tf.Tensor:
    """Pseudo-random int32 in [0, 2³¹) from int32 ids: MurmurHash3's finalizer, twice.

    Computed in uint32, where overflow is defined; after the last shift the result fits int32.
    """
    x = tf.cast(ids, tf.uint32)
    for key in (seed % 2**32, 0x9E3779B9):  # one round mixes small ids too little
        x = tf.bitwise.bitwise_xor(x, tf.constant(key, tf.uint32))
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            x = _fold(x, shift) * tf.constant(factor, tf.uint32)
        x = _fold(x, 16)
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(1, tf.uint32)), tf.int32)


def _fold(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
