"""The router: scores every token against every expert.  G groups, S tokens, E experts, M model."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.layer import Context, Layer, Uniform, WeightSpec
from lingvo_moe.core.nested_map import NestedMap


class RouterOutput(NamedTuple):
    """logits float32 [G, S, E]; stats, float32, means over real tokens.

    `z_loss` [] is differentiable; `importance` [E] is the mean of the softmax (it sums to 1) and
    `entropy` [] the mean entropy of a token's softmax, in nats: ln E if undecided, 0 if certain.
    """

    logits: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Router(Layer):
    """tokens·gate, in float32 whatever the activations: bfloat16 would reorder near-ties.

    Attributes:
        model_dim: M.
        num_experts: E.
        jitter: ε; in training each element of the router's inputs, and only of the router's, is
            multiplied by U(1-ε, 1+ε).
    """

    model_dim: int
    num_experts: int
    jitter: float = 0.0

    def weights(self):
        """Theta: gate [M, E].

        Its letter is "e": its columns are neither independent experts to the optimizer nor split
        over devices, since every token is scored against all of them.
        """
        limit = (3.0 / self.model_dim) ** 0.5
        shape = (self.model_dim, self.num_experts)
        return NestedMap(gate=WeightSpec(shape, Uniform(limit), "Me"))

    def fprop(
        self, theta: NestedMap, tokens: tf.Tensor, mask: tf.Tensor, context: Context
    ) -> RouterOutput:
        """Scores tokens.

        Args:
            theta: as `weights`.
            tokens: [G, S, M].
            mask: bool [G, S], false for padding.
            context: mode and randomness, for jitter.
        """
        tokens = tf.cast(tokens, tf.float32)
        if context.training and self.jitter:
            low, high = 1.0 - self.jitter, 1.0 + self.jitter
            tokens *= tf.random.stateless_uniform(tf.shape(tokens), context.seed, low, high)
        logits = tf.einsum("GSM,ME->GSE", tokens, tf.cast(theta.gate, tf.float32))
        log_total = tf.reduce_logsumexp(logits, axis=-1)
        gates = tf.nn.softmax(logits)
        # -Σ p·ln p with ln p = logit - logsumexp.
        entropy = log_total - tf.reduce_sum(gates * logits, axis=-1)
        stats = NestedMap(
            z_loss=token_mean(tf.square(log_total), mask),
            importance=token_mean(gates, mask),
            entropy=token_mean(entropy, mask),
        )
        return RouterOutput(logits, stats)


def token_mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The mean over real tokens; 0 if there are none.

    Args:
        values: float32 [G, S] or [G, S, …].
        mask: bool [G, S].
    """
    real = tf.cast(mask, tf.float32)
    total = tf.einsum("GS,GS...->...", real, values)
    return tf.math.divide_no_nan(total, tf.reduce_sum(real))
