"""FlexMoE's flexible routing with tensors: assigns the tokens of an expert to its slots.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 4 (flexible token routing). The gating
has chosen experts; this step assigns a slot to each choice. If an expert has I tokens and n slots,
each slot takes at most ceil(I / n) of them:

1. A device keeps its own tokens, at most the room of its own slots, n_here · ceil(I / n).
2. The rest goes to the expert's other devices in proportion to their free room: first
   floor(rest · free / all free) to each; then the tokens left by rounding, numbered over all
   sources, are spread evenly over the remaining room.
3. On a device the tokens of an expert, numbered by source, go to its slots in turn.

Products reach tokens² and need 64 bits.

A places along the mesh axis of data, each with its own tokens and copies of all slots, D devices as
sources, H the same devices as targets, K slots of a device, P = D·K slots, E experts, N choices of
a source.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Counts(NamedTuple):
    """A placement as tables.

    Attributes:
        placement: int32 [D, K], the expert in each slot, -1 for none.
        turn: int32 [D, K], number of earlier slots of the same expert on the device; -1 for an
            empty slot.
        replicas: int64 [E, D], number of slots of each expert on each device.
    """

    placement: tf.Tensor
    turn: tf.Tensor
    replicas: tf.Tensor


class Flow(NamedTuple):
    """Numbers of tokens sent from sources to targets and slots.

    Attributes:
        sent: int32 [A, D, E, H], choices of each expert from each source to each target.
        first: int32 [A, D, E, H], index of the first of them among all choices for the target.
        by_slot: int32 [P, A, D], choices that each slot gets from each source.
    """

    sent: tf.Tensor
    first: tf.Tensor
    by_slot: tf.Tensor


def counts_of(placement: tf.Tensor, num_experts: int) -> Counts:
    """The tables of a placement int32 [D, K]."""
    same = tf.cast(placement[:, :, None] == placement[:, None, :], tf.int32)
    before = np.tril(np.ones([placement.shape[1]] * 2, np.int32), k=-1)
    turn = tf.where(placement < 0, -1, tf.reduce_sum(same * before, axis=2))
    replicas = tf.reduce_sum(tf.one_hot(placement, num_experts, dtype=tf.int64), axis=1)
    return Counts(placement, turn, tf.transpose(replicas))


def flow_of(loads: tf.Tensor, counts: Counts) -> Flow:
    """Tokens from source to target and slot: rules 1 to 3.

    Args:
        loads: int [A, D, E], choices of each expert on each source.
        counts: of the placement; every expert has a slot.
    """
    sent = _device_flow(tf.cast(loads, tf.int64), counts.replicas)  # [A, E, D, H]
    first = tf.cumsum(sent, axis=2, exclusive=True)
    expert = tf.maximum(counts.placement, 0)

    def at_slots(by_expert):
        """[A, E, D, H] -> [H, K, A, D], of the expert in each slot."""
        return tf.gather(tf.transpose(by_expert, [3, 1, 0, 2]), expert, batch_dims=1)

    turn = tf.cast(counts.turn, tf.int64)[:, :, None, None]
    of = tf.gather(tf.transpose(counts.replicas), expert, batch_dims=1)[:, :, None, None]
    of = tf.maximum(of, 1)
    begin, number = at_slots(first), at_slots(sent)
    # Numbers q below x with q mod `of` = `turn` are (x - turn + of - 1) // of many.
    slots = (begin + number - turn + of - 1) // of - (begin - turn + of - 1) // of
    slots = tf.where(turn < 0, tf.constant(0, tf.int64), slots)
    devices, per_device, places, sources = slots.shape
    by_slot = tf.reshape(slots, [devices * per_device, places, sources])
    sent, first = (tf.transpose(x, [0, 2, 1, 3]) for x in (sent, first))
    return Flow(*(tf.cast(x, tf.int32) for x in (sent, first, by_slot)))


def choose_slots(
    expert: tf.Tensor,
    source: tf.Tensor,
    sent: tf.Tensor,
    first: tf.Tensor,
    counts: Counts,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The slot of each choice; the first tokens of a source for an expert stay on their device.

    Args:
        expert: int32 [s, N], the choices of s sources, -1 for none.
        source: int32 [s], which device each source is.
        sent: int32 [s, E, H], as in Flow.
        first: int32 [s, E, H], as in Flow.
        counts: of the placement.

    Returns:
        Two int32 [s, N]: the slot (P for none), and the choice's index among the choices from its
        source for this slot.
    """
    devices, per_device = counts.placement.shape
    num_experts = sent.shape[1]
    chosen = tf.one_hot(expert, num_experts, dtype=tf.int32)
    rank = tf.reduce_sum(tf.cumsum(chosen, axis=1, exclusive=True) * chosen, axis=-1)
    known = tf.maximum(expert, 0)
    sent = tf.gather(sent, known, batch_dims=1)  # [s, N, H]
    first = tf.gather(first, known, batch_dims=1)
    here = tf.one_hot(source, devices, dtype=tf.int32)[:, None, :]  # [s, 1, H]
    kept = tf.reduce_sum(sent * here, axis=-1)  # [s, N]
    away = sent * (1 - here)
    ends = tf.cumsum(away, axis=-1)
    passed = tf.cast(ends <= (rank - kept)[..., None], tf.int32)
    there = tf.minimum(tf.reduce_sum(passed, axis=-1), devices - 1)
    stays = rank < kept
    target = tf.where(stays, source[:, None], there)
    to = tf.one_hot(target, devices, dtype=tf.int32)
    before = kept + tf.reduce_sum((ends - away) * to, axis=-1)
    index = tf.where(stays, rank, rank - before)
    replicas = tf.cast(tf.reshape(counts.replicas, [-1]), tf.int32)
    of = tf.maximum(tf.gather(replicas, known * devices + target), 1)
    turn = (tf.reduce_sum(first * to, axis=-1) + index) % of
    mine = tf.gather(counts.placement, target) == expert[..., None]  # [s, N, K]
    mine &= tf.gather(counts.turn, target) == turn[..., None]
    place = tf.argmax(tf.cast(mine, tf.int32), axis=-1, output_type=tf.int32)
    slot = tf.where(expert < 0, devices * per_device, target * per_device + place)
    return slot, index // of


def _device_flow(loads, replicas):
    """Rules 1 and 2: loads int64 [A, D, E] -> [A, E, D, H]."""
    tokens = tf.transpose(loads, [0, 2, 1])
    total = tf.reduce_sum(tokens, axis=2)
    limit = -(-total // tf.maximum(tf.reduce_sum(replicas, axis=1), 1))  # ceil(cap)
    room = limit[:, :, None] * replicas
    kept = tf.minimum(room, tokens)
    own = tf.eye(tokens.shape[2], dtype=tf.int64)
    return _spread(tokens - kept, room - kept) + kept[..., None] * own


def _spread(rest, spare):
    """Rule 2: distributes rest [A, E, D] tokens to spare [A, E, H] room, which is sufficient."""
    flow = rest[..., :, None] * spare[..., None, :] // _at_least_one(spare)[..., None]
    left, free = rest - tf.reduce_sum(flow, axis=3), spare - tf.reduce_sum(flow, axis=2)
    last_token = tf.cumsum(left, axis=2)  # [A, E, D]
    tokens_before = -(-tf.cumsum(free, axis=2) * last_token[..., -1:] // _at_least_one(free))
    ends = tf.minimum(last_token[..., :, None], tokens_before[..., None, :])
    previous = tf.pad(tokens_before[..., :-1], [[0, 0], [0, 0], [1, 0]])
    begins = tf.maximum((last_token - left)[..., :, None], previous[..., None, :])
    return flow + tf.maximum(ends - begins, 0)


def _at_least_one(room):
    return tf.maximum(tf.reduce_sum(room, axis=-1, keepdims=True), 1)
