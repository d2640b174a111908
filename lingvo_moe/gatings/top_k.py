"""Top-k gating.  G groups, S tokens per group, E experts, K choices."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import PositiveInt
from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.queues import route_choices, top_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(Gating):
    """Each token goes to its k best experts.

    Shazeer et al. 2017 (arXiv 1701.06538) without its noise, with the queues and the balance loss
    of GShard: all first choices queue before all second ones, and so on; the loss counts first
    choices. Ties go to the lowest expert. `TopK(k=2)` is `Top2(second_expert="always")`.

    Attributes:
        k: number of experts of a token, at most E.
        normalize: whether the weights are the gates divided by their sum over the k choices (also
            those that are dropped later); otherwise they are the gates.

    Raises:
        ValueError: k < 1, or, in `route`, k > E.
    """

    k: PositiveInt = 2
    normalize: bool = True

    def route(self, logits, mask, capacity, context, token_ids=None):
        del context, token_ids
        num_experts = logits.shape[-1]
        if self.k > num_experts:
            raise ValueError(
                f"k={self.k} must not exceed the number of experts, {num_experts}; lower k or "
                f"raise moe.num_experts."
            )
        gates = tf.nn.softmax(logits)  # [G, S, E]
        weight, expert = top_choices(gates, self.k)  # [G, S, K]
        if self.normalize:
            weight /= tf.reduce_sum(weight, axis=-1, keepdims=True)
        return route_choices(gates, expert, weight, mask, capacity)
