"""Best experts, and counts of choices.  G groups, S tokens, E experts, K choices."""

import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient


def top_choices(
    gates: tf.Tensor, k: int, order: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The k best experts of each token; ties go to the lowest.

    Args:
        gates: float32 [G, S, E].
        k: K.
        order: float32 [G, S, E], the scores that define "best", without a gradient; None for the
            gates.

    Returns:
        Their gates float32 [G, S, K], and the experts int32 [G, S, K], the best first.
    """
    if order is None:
        return _top(gates, k)
    expert = tf.math.top_k(tf.stop_gradient(order), k).indices
    chosen = tf.one_hot(expert, gates.shape[-1])  # a gather would make XLA gather all tokens
    return tf.reduce_sum(chosen * gates[:, :, None], axis=-1), expert


@custom_gradient
def _top(gates, k):
    """The gradient is a product with one-hot rows.

    The gradient of tf.math.top_k scatters by index into all tokens. For this a partitioned program
    would gather the gradients of all tokens.
    """
    weight, expert = tf.math.top_k(gates, k)

    def grad(upstream, _):
        one_hot = tf.one_hot(expert, gates.shape[-1], dtype=gates.dtype)
        return tf.einsum("GSKE,GSK->GSE", one_hot, upstream), None

    return (weight, expert), grad


def group_counts(expert: tf.Tensor, wanted: tf.Tensor, num_experts: int) -> tf.Tensor:
    """float32 [G, E]: the number of a group's choices of each expert.

    Args:
        expert: int32 [G, S, K].
        wanted: bool [G, S, K], the choices that count.
        num_experts: E.
    """
    return tf.reduce_sum(tf.one_hot(tf.where(wanted, expert, -1), num_experts), axis=[1, 2])
