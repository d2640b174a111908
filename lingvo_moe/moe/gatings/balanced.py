"""Balanced assignment by optimal transport.  G groups, S tokens per group, E experts."""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balanced(Gating):
    """In training tokens are assigned so that all experts get nearly the same number.

    BASE (Lewis et al. 2021, arXiv 2103.16716) with the assignment computed by Sinkhorn iterations,
    S-BASE (Clark et al. 2022, arXiv 2202.01169). The assignment is soft; a token goes to the expert
    with its largest entry. So loads are nearly equal, and equal tokens go to the same expert. In
    evaluation a token goes to the expert with the highest logit, which depends on no other token.

    The weight is the expert's gate (softmax over experts). The router's gradient comes from this
    weight; the assignment has none. aux_loss is the constant 1.0. Tokens queue in their order. Ties
    go to the lowest expert.

    Attributes:
        iterations: number of Sinkhorn iterations in training.
    """

    iterations: PositiveInt = 16

    @property
    def choices_per_token(self):
        return 1

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        del extras
        gates = tf.nn.softmax(logits)  # [G, S, E]
        scores = sinkhorn(logits, mask, self.iterations) if context.training else logits
        expert = tf.argmax(scores, axis=-1, output_type=tf.int32)[..., None]  # [G, S, 1]
        weight = tf.gather(gates, expert, batch_dims=2)
        routing = route_choices(gates, expert, weight, mask, capacity)
        return routing._replace(aux_loss=tf.constant(1.0), loss=0.0)


def sinkhorn(logits: tf.Tensor, mask: tf.Tensor, iterations: int) -> tf.Tensor:
    """The entropy-regularised transport plan of tokens to experts, in log space, as a constant.

    Args:
        logits: float32 [G, S, E].
        mask: bool [G, S]; padding has no effect.
        iterations: scalings of columns and rows.

    Returns:
        float32 [G, S, E], log of the plan: rows sum to 1; columns of the real tokens sum to about
        tokens / E, closer with more iterations.
    """
    real = mask[..., None]
    tokens = tf.reduce_sum(tf.cast(real, tf.float32), axis=1, keepdims=True)  # [G, 1, 1]
    log_column = tf.math.log(tf.maximum(tokens, 1.0) / logits.shape[-1])
    plan = tf.nn.log_softmax(tf.stop_gradient(logits))
    for _ in range(iterations):
        # -1e9 instead of -inf, so that a group of padding stays finite.
        moved = tf.reduce_logsumexp(tf.where(real, plan, -1e9), axis=1, keepdims=True)
        plan = tf.nn.log_softmax(plan + log_column - moved)
    return plan
