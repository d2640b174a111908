"""Expert-choice gating.  G groups, S tokens per group, E experts, C capacity."""

import dataclasses
import math

import tensorflow as tf

from lingvo_moe.config.fields import PositiveFloat
from lingvo_moe.moe.gatings.base import NOTHING, Gating, Routing, expert_capacity
from lingvo_moe.moe.gatings.queues import drop_rate, load_share
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertChoice(Gating):
    """Each expert takes the C tokens of the group that have the highest gates for it.

    Zhou et al. 2022 (arXiv 2202.09368), section 3.2, without its cap on experts per token. Weights
    are the gates (softmax over experts). A token may get any number of experts, also none. Ties go
    to the earlier token. The experts are balanced by construction, so aux_loss is the constant 1.0.

    The experts of a token depend on the other tokens of its group, also on later ones. So a decoder
    would see later tokens in training, and decoding with this gating is an error. On a mesh an
    evaluation has other groups than on one device, and so a slightly different loss.

    In the Routing K is E: the experts that take a token, by descending gate, then the others, which
    are not dispatched. A token counts as dropped if no expert takes it. The statistics `load` and
    `choices` count the taken tokens.

    Attributes:
        capacity_factor: C = ceil(capacity_factor · S / E), the paper's k; a lower capacity of the
            dispatcher limits it.
    """

    capacity_factor: PositiveFloat = 2.0

    @property
    def batch_independent(self):
        return False

    @property
    def choices_per_token(self):
        return math.ceil(self.capacity_factor)

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        """As in Gating.

        Raises:
            ValueError: S is not static, as in decoding.
        """
        del context, extras
        own = expert_capacity(self.capacity_factor, logits.shape[1], logits.shape[-1])
        if own is None:
            raise ValueError(
                f"{self} compares the tokens of a group, so it needs a static shape; got "
                f"{logits.shape}."
            )
        capacity = min(own, capacity or own)
        gates = tf.nn.softmax(logits)  # [G, S, E]
        position = _ranks(tf.where(mask[..., None], gates, -1.0))  # padding is last in every order
        taken = mask[..., None] & (position < capacity)
        weight = tf.where(taken, gates, 0.0)
        experts = tf.argsort(weight, axis=-1, direction="DESCENDING", stable=True)
        counts = tf.reduce_sum(tf.cast(taken, tf.float32), axis=1)  # [G, E]
        dropped = tf.cast(mask & ~tf.reduce_any(taken, axis=-1), tf.float32)
        real = tf.cast(mask, tf.float32)
        return Routing(
            expert=experts,
            position=tf.gather(position, experts, batch_dims=2),
            weight=tf.gather(weight, experts, batch_dims=2),
            dispatched=tf.gather(taken, experts, batch_dims=2),
            wanted=real,
            dropped=dropped,
            aux_loss=tf.constant(1.0),
            stats=NestedMap(
                load=load_share(counts),
                choices=tf.reduce_sum(counts, axis=0),
                drop_rate=drop_rate(real, dropped),
            ),
        )


def _ranks(scores: tf.Tensor) -> tf.Tensor:
    """int32 [G, S, E]: the rank of each token in its group, by descending score for an expert."""
    order = tf.argsort(scores, axis=1, direction="DESCENDING", stable=True)
    return tf.argsort(order, axis=1)
