"""Top-2 gating of GShard (Algorithm 1).  G groups, S tokens per group, E experts, K choices."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import one_of
from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.queues import route_choices, top_choices

SECOND_EXPERT = ("always", "random", "sampled", "never")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top2(Gating):
    """Each token goes to its best expert and, if there is room and luck, to a second one.

    Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1. Weights are normalised before anything
    is dropped and survivors keep theirs. First choices of all tokens queue before second choices.
    A choice takes its place in the queue whether or not it fits and whether or not the second
    expert's random draw takes it, as Algorithm 1 counts it. Ties go to the lowest expert.

    Attributes:
        second_expert: what becomes of the second choice in training. Algorithm 1's "random" takes
            the second best with probability min(1, 2·g2); "always" takes it whatever its weight.
            "sampled" draws an expert in proportion to the gates of all but the first, and always
            takes it: every expert is tried now and then. In evaluation these three take the second
            best. "never" goes to the best expert alone, in evaluation too, with the weight
            g1 / (g1 + g2) that Algorithm 1 gives it: a weight of 1 would leave the router nothing
            to learn from, and g1 as it stands is `Switch`.

    Raises:
        ValueError: second_expert is none of them.
    """

    second_expert: one_of(*SECOND_EXPERT) = "random"

    def route(self, logits, mask, capacity, context, token_ids=None):
        del token_ids
        gates, num_experts = tf.nn.softmax(logits), logits.shape[-1]  # [G, S, E]
        if self.second_expert == "sampled" and context.training and num_experts > 1:
            weight, expert = _first_and_drawn(gates, logits, context)
        else:
            weight, expert = top_choices(gates, min(2, num_experts))  # [G, S, K]
        weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
        if self.second_expert == "never":
            expert, weight = expert[..., :1], weight[..., :1]
        return route_choices(gates, expert, weight, mask, capacity, self._take(weight, context))

    def _take(self, weight, context):
        """bool [G, S, K]: whether the random draw takes each choice; None for all."""
        if not context.training or self.second_expert != "random":
            return None
        draw = context.uniform(tf.shape(weight)[:2])
        second = 2.0 * weight[..., 1:] > draw[..., None]
        return tf.concat([tf.ones_like(weight[..., :1], tf.bool), second], axis=-1)


def _first_and_drawn(gates, logits, context):
    """Weight and expert [G, S, 2]: the best expert, and one drawn by the gates of the others.

    Gumbel noise makes the largest logit a draw from the softmax, which is that over the others
    where the best one is left out.
    """
    draw = context.uniform(tf.shape(logits), low=1e-20)
    noisy = logits - tf.math.log(-tf.math.log(draw))
    first = tf.argmax(gates, axis=-1, output_type=tf.int32)  # [G, S]
    is_first = tf.one_hot(first, logits.shape[-1])  # [G, S, E]
    second = tf.argmax(tf.where(is_first > 0, -1e9, noisy), axis=-1, output_type=tf.int32)
    is_second = tf.one_hot(second, logits.shape[-1])
    weights = [tf.reduce_sum(gates * chosen, axis=-1) for chosen in (is_first, is_second)]
    return tf.stack(weights, axis=-1), tf.stack([first, second], axis=-1)
