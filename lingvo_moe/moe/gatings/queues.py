"""Functions of several gatings: queues, statistics.

G groups, S tokens, E experts, K choices.
"""

import tensorflow as tf

from lingvo_moe.moe.gatings.balance_loss import BY_GROUP, BalanceLoss
from lingvo_moe.moe.gatings.base import NOTHING, Extras, Routing
from lingvo_moe.moe.gatings.choices import group_counts
from lingvo_moe.nn.nested_map import NestedMap


def route_choices(
    gates: tf.Tensor,
    expert: tf.Tensor,
    weight: tf.Tensor,
    mask: tf.Tensor,
    capacity: int | None,
    taken: tf.Tensor | None = None,
    balance: BalanceLoss = BY_GROUP,
    extras: Extras = NOTHING,
) -> Routing:
    """The Routing of tokens that choose experts: queues, capacity, balance loss, statistics.

    All first choices queue before all second ones, in the order of tokens. Every choice takes a
    place in the queue, even if it exceeds the capacity or is not taken (GShard Algorithm 1).

    Args:
        gates: float32 [G, S, E]; those of a token sum to 1.
        expert: int32 [G, S, K].
        weight: float32 [G, S, K].
        mask: bool [G, S].
        capacity: C, or None for no limit.
        taken: bool [G, S, K], choices that a random draw keeps; None for all.
        balance: the balance loss.
        extras: its other inputs.
    """
    wanted, num_experts = tf.broadcast_to(mask[..., None], tf.shape(expert)), gates.shape[-1]
    position = queue_positions(expert, wanted, num_experts)
    first = group_counts(expert[..., :1], wanted[..., :1], num_experts)
    if taken is not None:
        wanted &= taken
    fits = wanted if capacity is None else wanted & (position < capacity)
    wanted_count, kept_count = (tf.reduce_sum(tf.cast(x, tf.float32), -1) for x in (wanted, fits))
    dropped = wanted_count - kept_count
    aux_loss = balance(gates, expert, mask, extras)
    return Routing(
        expert=expert,
        position=position,
        weight=tf.where(fits, weight, 0.0),
        dispatched=fits,
        wanted=wanted_count,
        dropped=dropped,
        aux_loss=aux_loss,
        loss=balance.weight * aux_loss,
        stats=NestedMap(
            load=load_share(first),
            choices=tf.reduce_sum(group_counts(expert, wanted, num_experts), axis=0),
            drop_rate=drop_rate(wanted_count, dropped),
        ),
    )


def queue_positions(expert: tf.Tensor, wanted: tf.Tensor, num_experts: int) -> tf.Tensor:
    """Positions in the experts' queues: all first choices in order of tokens, then second ones.

    Args:
        expert: int32 [G, S, K].
        wanted: bool [G, S, K], the choices that queue.
        num_experts: E.

    Returns:
        int32 [G, S, K], 0 where not wanted.
    """
    # -1 is in no queue. tf.stack instead of a transpose, for which oneDNN logs an error.
    chosen = tf.stack(tf.unstack(tf.where(wanted, expert, -1), axis=-1), axis=1)  # [G, K, S]
    queues = tf.one_hot(chosen, num_experts, dtype=tf.int32)  # [G, K, S, E]
    shape = tf.shape(queues)
    in_order = tf.reshape(queues, [shape[0], shape[1] * shape[2], num_experts])
    before = tf.cumsum(in_order, axis=1, exclusive=True)
    position = tf.reduce_sum(before * in_order, axis=-1)
    position = tf.reshape(position, shape[:3])
    return tf.stack(tf.unstack(position, expert.shape[-1], axis=1), axis=-1)


def load_share(counts: tf.Tensor) -> tf.Tensor:
    """float32 [E]: each expert's share of the choices counted in each group, [G, E]."""
    total = tf.reduce_sum(counts, axis=0)
    return tf.math.divide_no_nan(total, tf.reduce_sum(total))


def drop_rate(wanted: tf.Tensor, dropped: tf.Tensor) -> tf.Tensor:
    """float32 []: the share of wanted choices that were dropped; both counts have one shape."""
    return tf.math.divide_no_nan(tf.reduce_sum(dropped), tf.reduce_sum(wanted))
