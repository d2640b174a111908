"""FlexMoE's flexible routing with tensors: assigns the tokens of an expert to its slots.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 4 (flexible token routing). The gating
has chosen experts; this step assigns a slot to each choice. If an expert has I tokens and n slots,
each slot takes at most ceil(I / n) of them:

1. A device keeps its own tokens, at most the room of its own slots, n_here · ceil(I / n).
2. The rest goes to the expert's other devices in proportion to their free room: first
   floor(rest · free / all free) to each; then the tokens left by rounding, numbered over all
   sources, are spread evenly over the remaining room.
3. On a device they all go to the expert's first slot, because its replicas there share weights.

Products reach tokens² and need 64 bits.

A places along the mesh axis of data, each with its own tokens and copies of all slots, D devices as
sources, H the same devices as targets, K slots of a device, P = D·K slots, E experts, N choices of
a source.
"""

import tensorflow as tf

from lingvo_moe.sbp.annotations import annotate


def replicas_of(placement: tf.Tensor, num_experts: int) -> tf.Tensor:
    """int64 [E, D], the slots of each expert on each device, of a placement int32 [D, K]."""
    on_device = tf.one_hot(placement, num_experts, dtype=tf.int64)
    return tf.transpose(tf.reduce_sum(on_device, axis=1))


def flow_of(loads: tf.Tensor, placement: tf.Tensor) -> tf.Tensor:
    """Tokens from source to target: rules 1 and 2.

    Args:
        loads: int [A, D, E], choices of each expert on each source.
        placement: int32 [D, K]; every expert has a slot.

    Returns:
        int32 [A, D, E, H], choices of each expert from each source to each target.
    """
    sent = _device_flow(tf.cast(loads, tf.int64), replicas_of(placement, loads.shape[-1]))
    return tf.cast(tf.transpose(sent, [0, 2, 1, 3]), tf.int32)


def choose_slots(
    expert: tf.Tensor, source: tf.Tensor, sent: tf.Tensor, placement: tf.Tensor
) -> tf.Tensor:
    """The slot of each choice; the first tokens of a source for an expert stay on their device.

    Args:
        expert: int32 [s, N], the choices of s sources, -1 for none.
        source: int32 [s], which device each source is.
        sent: int32 [s, E, H], as from `flow_of`.
        placement: int32 [D, K].

    Returns:
        int32 [s, N], the first slot of the expert on its device; P for none.
    """
    devices, per_device = placement.shape
    num_experts = sent.shape[1]
    chosen = tf.one_hot(expert, num_experts, dtype=tf.int32)
    rank = tf.reduce_sum(tf.cumsum(chosen, axis=1, exclusive=True) * chosen, axis=-1)
    known = tf.maximum(expert, 0)
    sent = tf.gather(sent, known, batch_dims=1)  # [s, N, H]
    here = tf.one_hot(source, devices, dtype=tf.int32)[:, None, :]  # [s, 1, H]
    kept = tf.reduce_sum(sent * here, axis=-1)  # [s, N]
    ends = tf.cumsum(sent * (1 - here), axis=-1)
    passed = tf.cast(ends <= (rank - kept)[..., None], tf.int32)
    there = tf.minimum(tf.reduce_sum(passed, axis=-1), devices - 1)
    target = tf.where(rank < kept, source[:, None], there)
    held = tf.cast(placement[:, None] == tf.range(num_experts)[:, None], tf.int32)  # [H, E, K]
    first = tf.reshape(tf.argmax(held, axis=2, output_type=tf.int32), [-1])
    place = tf.gather(first, target * num_experts + known)
    return tf.where(expert < 0, devices * per_device, target * per_device + place)


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
    flow = _by_source(rest[..., :, None] * spare[..., None, :] // _at_least_one(spare)[..., None])
    left = _whole(rest - tf.reduce_sum(flow, axis=3))
    free = _whole(spare - tf.reduce_sum(flow, axis=2))
    last_token = annotate(tf.cumsum(left, axis=2), "...")  # [A, E, D]
    tokens_before = -(-tf.cumsum(free, axis=2) * last_token[..., -1:] // _at_least_one(free))
    tokens_before = annotate(tokens_before, "...")
    ends = tf.minimum(last_token[..., :, None], tokens_before[..., None, :])
    previous = tf.pad(tokens_before[..., :-1], [[0, 0], [0, 0], [1, 0]])
    begins = tf.maximum((last_token - left)[..., :, None], previous[..., None, :])
    return flow + _by_source(tf.maximum(ends - begins, 0))


def _by_source(flow):
    """On a mesh each source holds its own row of the flow [A, E, D, H], which grows with D²."""
    return annotate(flow, "g.E.")


def _whole(counts):
    """On a mesh every device holds all counts [A, E, D], which are sent in 32 bits."""
    return tf.cast(annotate(tf.cast(counts, tf.int32), "..."), tf.int64)


def _at_least_one(room):
    return tf.maximum(tf.reduce_sum(room, axis=-1, keepdims=True), 1)
