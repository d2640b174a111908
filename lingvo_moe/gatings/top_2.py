"""Top-2 gating of GShard (Algorithm 1).  G groups, S tokens per group, E experts, C capacity."""

import dataclasses

import tensorflow as tf

from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.queues import route_choices

SECOND_EXPERT = ("always", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top2(Gating):
    """Each token goes to its best expert and, if there is room and luck, to its second best.

    Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1. Weights are normalised before anything
    is dropped and survivors keep theirs. First choices of all tokens queue before second choices.
    A choice takes its place in the queue whether or not it fits and whether or not the second
    expert's random draw takes it, as Algorithm 1 counts it. Ties go to the lowest expert.

    Attributes:
        second_expert: in training, "random" dispatches the second choice with probability
            min(1, 2·g2); "always" does so whatever its weight. Evaluation is always "always".
    """

    second_expert: str = "random"

    def __post_init__(self):
        if self.second_expert not in SECOND_EXPERT:
            raise ValueError(
                f"second_expert must be in {SECOND_EXPERT}, got {self.second_expert!r}."
            )

    def route(self, logits, mask, capacity, context, token_ids=None):
        del token_ids
        num_experts = logits.shape[-1]
        gates = tf.nn.softmax(logits)  # [G, S, E]
        weight, expert = tf.math.top_k(gates, k=min(2, num_experts))  # [G, S, K]
        weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
        return route_choices(gates, expert, weight, mask, capacity, self._take(weight, context))

    def _take(self, weight, context):
        """bool [G, S, K]: whether the random draw takes each choice."""
        if not context.training or self.second_expert == "always":
            return tf.ones_like(weight, tf.bool)
        draw = tf.random.stateless_uniform(tf.shape(weight)[:2], context.seed)
        second = 2.0 * weight[..., 1:] > draw[..., None]
        return tf.concat([tf.ones_like(weight[..., :1], tf.bool), second], axis=-1)
