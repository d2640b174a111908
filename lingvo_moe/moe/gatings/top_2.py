"""Top-2 gating of GShard (Algorithm 1).  G groups, S tokens per group, E experts, K choices."""

import dataclasses
from typing import Literal

import tensorflow as tf

from lingvo_moe.moe.gatings.balance_loss import BY_GROUP, BalanceLoss
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.choices import top_choices
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top2(Gating):
    """Each token goes to its best expert and, by a policy, to a second one.

    Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1. Weights are normalised before choices are
    dropped, and not again after it. First choices of all tokens queue before second choices. As in
    Algorithm 1 every choice takes a place in the queue, even if it exceeds the capacity or the
    random draw does not take it. Ties go to the lowest expert.

    Attributes:
        second_expert: the policy for the second choice in training. "random" (Algorithm 1) takes
            the second best with probability min(1, 2·g2). "always" always takes it. "sampled" draws
            an expert in proportion to the gates of all but the first, and always takes it. In
            evaluation these three take the second best. "never" takes no second expert, in
            evaluation too; the best one keeps Algorithm 1's weight g1 / (g1 + g2), because a weight
            of 1 would give the router no gradient (with the weight g1 it would be `Switch`).
        balance: the balance loss.

    Raises:
        ValueError: second_expert has another value.
    """

    second_expert: Literal["always", "random", "sampled", "never"] = "random"
    balance: BalanceLoss = BY_GROUP

    @property
    def choices_per_token(self):
        return 1 if self.second_expert == "never" else 2

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        gates, num_experts = tf.nn.softmax(logits), logits.shape[-1]  # [G, S, E]
        if self.second_expert == "sampled" and context.training and num_experts > 1:
            weight, expert = _first_and_drawn(gates, logits, context)
        else:
            weight, expert = top_choices(gates, min(2, num_experts))  # [G, S, K]
        weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
        if self.second_expert == "never":
            expert, weight = expert[..., :1], weight[..., :1]
        taken = self._take(weight, context)
        return route_choices(
            gates, expert, weight, mask, capacity, taken, balance=self.balance, extras=extras
        )

    def _take(self, weight, context):
        """bool [G, S, K]: whether the random draw takes each choice; None for all."""
        if not context.training or self.second_expert != "random":
            return None
        draw = context.uniform(tf.shape(weight[..., 0]))
        second = 2.0 * weight[..., 1:] > draw[..., None]
        return tf.concat([tf.ones_like(weight[..., :1], tf.bool), second], axis=-1)


def _first_and_drawn(gates, logits, context):
    """Weight and expert [G, S, 2]: the best expert, and one drawn by the gates of the others.

    The largest logit plus Gumbel noise is a sample of the softmax; the best expert is excluded.
    """
    draw = context.uniform(tf.shape(logits), low=1e-20)
    noisy = logits - tf.math.log(-tf.math.log(draw))
    first = tf.argmax(gates, axis=-1, output_type=tf.int32)  # [G, S]
    is_first = tf.one_hot(first, logits.shape[-1])  # [G, S, E]
    second = tf.argmax(tf.where(is_first > 0, -1e9, noisy), axis=-1, output_type=tf.int32)
    is_second = tf.one_hot(second, logits.shape[-1])
    weights = [tf.reduce_sum(gates * chosen, axis=-1) for chosen in (is_first, is_second)]
    return tf.stack(weights, axis=-1), tf.stack([first, second], axis=-1)
