"""Dropless experts on one device with dynamic shapes, and little padding.

G groups, S tokens per group, N = G·S tokens, K choices, E experts, M model.
"""

import dataclasses

import tensorflow as tf

from lingvo_moe.moe.dispatch import (
    AnyShape,
    Dispatched,
    by_expert,
    combine,
    expert_or_none,
    inverse,
    lost,
    permute,
)
from lingvo_moe.nn.nested_map import NestedMap

_WEIGHT_ROWS = 10  # rows whose compute time equals the time to read an expert's weights
# oneDNN compiles a bfloat16 product for each new shape, which takes as long as computing hundreds
# of rows. So the number of rows is rounded up, to have few shapes.
_ROW_MULTIPLE = {tf.bfloat16: 32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged(AnyShape):
    """Sorts choices by expert; each expert computes its rows (in bfloat16 up to 31 more).

    If loads are small or nearly even, they are padded to the largest load instead, and all experts
    are one product (see `faster_together`). Separate experts take time to start, but the weights of
    an expert without rows are then not read, as of most experts in decoding.

    It needs dynamic shapes, so it runs on TensorFlow's executor, not with XLA (use `Dropless`
    there). Every choice is computed.
    """

    one_device = True

    def dispatch(self, inputs, routing, capacity, experts):
        del capacity
        num_experts, model_dim = experts.num_experts, inputs.shape[-1]
        order, counts = by_expert(expert_or_none(routing, num_experts), num_experts)
        tokens = tf.reshape(inputs, [-1, model_dim])
        weight = tf.reshape(routing.weight, [-1, routing.weight.shape[-1]])
        sizes = _round_up(counts, inputs.dtype)
        most = tf.reduce_max(sizes)

        def in_runs(sizes):
            slot, choice = _in_runs(order, counts, sizes)
            slot = tf.reshape(slot, tf.shape(weight))
            return permute(tokens, slot, choice), slot, choice

        def out_of_runs(outputs, slot, choice):
            return combine(outputs, weight, slot, choice), slot < tf.size(choice)

        def together():
            rows, *runs = in_runs(tf.fill(tf.shape(counts), most))
            outputs = experts.together(tf.reshape(rows, [num_experts, most, model_dim]))
            return out_of_runs(tf.reshape(outputs, [-1, model_dim]), *runs)

        def one_by_one():
            rows, *runs = in_runs(sizes)
            pairs = zip(experts.one_by_one(), tf.split(rows, sizes, num=num_experts), strict=True)
            return out_of_runs(tf.concat([expert(run) for expert, run in pairs], axis=0), *runs)

        outputs, computed = tf.cond(
            faster_together(sizes, experts.separate_rows), together, one_by_one
        )
        stats = NestedMap(lost=lost(routing, computed))
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), stats)


def faster_together(sizes: tf.Tensor, separate_rows: int) -> tf.Tensor:
    """bool []: whether one product of all experts, padded to the busiest one, is faster.

    The alternative is a product for each expert that has rows, which reads no other weights.

    Args:
        sizes: int32 [E], the rows of each expert.
        separate_rows: see Experts.
    """
    used = tf.math.count_nonzero(sizes, dtype=tf.int32)
    padded = (tf.reduce_max(sizes) + _WEIGHT_ROWS) * tf.size(sizes)
    return padded <= tf.reduce_sum(sizes) + (_WEIGHT_ROWS + separate_rows) * used


def _round_up(counts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Counts of rows, rounded up to the multiple for this dtype."""
    multiple = _ROW_MULTIPLE.get(dtype, 1)
    return -(-counts // multiple) * multiple


def _in_runs(order, counts, sizes):
    """The slots of choices in runs of rows, one run for each expert, in order of experts.

    Args:
        order, counts: from `by_expert`.
        sizes: int32 [E], the rows of each run, at least counts; the rest of a run is empty.

    Returns:
        The slot of each choice, int32 [N · K] (the number of slots if not dispatched), and its
        inverse.
    """
    num_slots = tf.reduce_sum(sizes)
    place = tf.range(tf.size(order))
    expert = tf.searchsorted(tf.cumsum(counts), place, side="right")
    ahead = tf.cumsum(sizes, exclusive=True) - tf.cumsum(counts, exclusive=True)
    slot = place + tf.gather(tf.concat([ahead, [num_slots]], axis=0), expert)
    slot = tf.scatter_nd(order[:, None], tf.minimum(slot, num_slots), tf.shape(order))
    return slot, inverse(slot, num_slots)
