"""Functions of several gatings: queues, losses, statistics.

G groups, S tokens, E experts, K choices.
"""

import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Routing


@tf.custom_gradient
def top_choices(gates: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The k best experts of each token; ties go to the lowest.

    The gradient is a product with one-hot rows. The gradient of tf.math.top_k scatters by index
    over all tokens, for which a partitioned program would gather the tokens of all devices.

    Args:
        gates: float32 [G, S, E].
        k: K.

    Returns:
        Their gates float32 [G, S, K] in descending order, and the experts int32 [G, S, K].
    """
    weight, expert = tf.math.top_k(gates, k)

    def grad(upstream, _):
        one_hot = tf.one_hot(expert, gates.shape[-1], dtype=gates.dtype)
        return tf.einsum("GSKE,GSK->GSE", one_hot, upstream), None

    return (weight, expert), grad


def route_choices(
    gates: tf.Tensor,
    expert: tf.Tensor,
    weight: tf.Tensor,
    mask: tf.Tensor,
    capacity: int | None,
    taken: tf.Tensor | None = None,
) -> Routing:
    """The Routing of tokens that choose experts: queues, capacity, balance loss, statistics.

    All first choices queue before all second ones, in the order of tokens. Every choice takes a
    place in the queue, even if it exceeds the capacity or is not taken (GShard Algorithm 1).

    Args:
        gates: float32 [G, S, E], softmax over experts.
        expert: int32 [G, S, K].
        weight: float32 [G, S, K].
        mask: bool [G, S].
        capacity: C, or None for no limit.
        taken: bool [G, S, K], choices that a random draw keeps; None for all.
    """
    wanted = tf.broadcast_to(mask[..., None], tf.shape(expert))
    position, first_counts = queue_positions(expert, wanted, gates.shape[-1])
    if taken is not None:
        wanted &= taken
    fits = wanted if capacity is None else wanted & (position < capacity)
    wanted_count, kept_count = (tf.reduce_sum(tf.cast(x, tf.float32), -1) for x in (wanted, fits))
    dropped = wanted_count - kept_count
    return Routing(
        expert=expert,
        position=position,
        weight=tf.where(fits, weight, 0.0),
        dispatched=fits,
        wanted=wanted_count,
        dropped=dropped,
        aux_loss=balance_loss(gates, first_counts, mask),
        stats=NestedMap(load=load_share(first_counts), drop_rate=drop_rate(wanted_count, dropped)),
    )


def queue_positions(
    expert: tf.Tensor, wanted: tf.Tensor, num_experts: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Places in the experts' queues: all first choices in order of tokens, then all second ones.

    Args:
        expert: int32 [G, S, K].
        wanted: bool [G, S, K], the choices that queue.
        num_experts: E.

    Returns:
        position int32 [G, S, K] (0 where not wanted), and the queue lengths after the first
        choices, int32 [G, E].
    """
    # -1 is in no queue. tf.stack instead of a transpose, for which oneDNN logs an error.
    chosen = tf.stack(tf.unstack(tf.where(wanted, expert, -1), axis=-1), axis=1)  # [G, K, S]
    queues = tf.one_hot(chosen, num_experts, dtype=tf.int32)  # [G, K, S, E]
    first_counts = tf.reduce_sum(queues[:, 0], axis=1)
    shape = tf.shape(queues)
    in_order = tf.reshape(queues, [shape[0], shape[1] * shape[2], num_experts])
    before = tf.cumsum(in_order, axis=1, exclusive=True)
    position = tf.reduce_sum(before * in_order, axis=-1)
    position = tf.reshape(position, shape[:3])
    return tf.stack(tf.unstack(position, expert.shape[-1], axis=1), axis=-1), first_counts


def balance_loss(gates: tf.Tensor, counts: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """E · Σ_e (count_e / S) · m_e, averaged over groups: 1.0 at perfect balance, E at collapse.

    GShard Algorithm 1's ℓ_aux = (1/E)·Σ_e …, times E². S counts real tokens. Differentiable
    through m_e, the mean gate.

    Args:
        gates: float32 [G, S, E], softmax over experts.
        counts: int32 [G, E], tokens whose first choice is e, over-capacity ones included.
        mask: bool [G, S].

    Returns:
        float32 [].
    """
    real = tf.cast(mask, tf.float32)
    tokens = tf.maximum(tf.reduce_sum(real, axis=1, keepdims=True), 1.0)  # [G, 1]
    mean_gates = tf.reduce_sum(gates * real[..., None], axis=1) / tokens
    share = tf.cast(counts, tf.float32) / tokens
    per_group = tf.reduce_sum(share * mean_gates, axis=-1) * gates.shape[-1]
    occupied = tf.cast(tf.reduce_any(mask, axis=1), tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(per_group * occupied), tf.reduce_sum(occupied))


def load_share(counts: tf.Tensor) -> tf.Tensor:
    """float32 [E]: each expert's share of the counted choices, over all groups."""
    total = tf.cast(tf.reduce_sum(counts, axis=0), tf.float32)
    return tf.math.divide_no_nan(total, tf.reduce_sum(total))


def drop_rate(wanted: tf.Tensor, dropped: tf.Tensor) -> tf.Tensor:
    """float32 []: the share of wanted choices that were dropped; both counts have one shape."""
    return tf.math.divide_no_nan(tf.reduce_sum(dropped), tf.reduce_sum(wanted))
