"""Top-2 gating of GShard (Algorithm 1).  G groups, S tokens per group, E experts, K choices."""

import dataclasses

import tensorflow as tf

from lingvo_moe.moe.gatings.balance_loss import BY_GROUP, BalanceLoss
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.choices import top_choices
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top2(Gating):
    """Each token goes to its best expert and, in training by chance, to its second best.

    Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1: in training the second expert is taken
    with probability min(1, 2·g2), in evaluation always. Weights are normalised before choices are
    dropped, and not again after it. First choices of all tokens queue before second choices. As in
    Algorithm 1 every choice takes a place in the queue, even if it exceeds the capacity or the
    random draw does not take it. Ties go to the lowest expert. `TopK(k=2)` always takes both.

    Attributes:
        balance: the balance loss.
    """

    balance: BalanceLoss = BY_GROUP

    @property
    def choices_per_token(self):
        return 2

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        gates = tf.nn.softmax(logits)  # [G, S, E]
        weight, expert = top_choices(gates, min(2, logits.shape[-1]))  # [G, S, K]
        weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
        taken = _take(weight, context) if context.training else None
        return route_choices(
            gates, expert, weight, mask, capacity, taken, balance=self.balance, extras=extras
        )


def _take(weight, context):
    """bool [G, S, K]: whether the random draw takes each choice."""
    draw = context.uniform(tf.shape(weight[..., 0]))
    second = 2.0 * weight[..., 1:] > draw[..., None]
    return tf.concat([tf.ones_like(weight[..., :1], tf.bool), second], axis=-1)
