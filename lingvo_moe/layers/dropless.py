"""Dropless experts on one device, without padding or as block-sparse products (MegaBlocks).

Gale et al. 2022, MegaBlocks, arXiv 2211.15841.

G groups, S tokens per group, N = G·S tokens, K choices, E experts, M model, H hidden, R row blocks
of B rows, C column blocks of H columns, Z blocks.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import PositiveInt
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Routing
from lingvo_moe.layers.block_sparse import Topology, block_diagonal, sampled, summed_by_row
from lingvo_moe.layers.dispatch import (
    AnyShape,
    Dispatched,
    by_expert,
    combine,
    inverse,
    lost,
    permute,
)
from lingvo_moe.layers.feed_forward import Products

_WEIGHT_ROWS = 10  # rows whose compute time equals the time to read an expert's weights
# oneDNN compiles a bfloat16 product for each new shape, which takes as long as computing hundreds
# of rows. So the number of rows is rounded up, to have few shapes.
_ROW_MULTIPLE = {tf.bfloat16: 32}
_LARGEST_BLOCK = 128  # the paper's, section 5.1.2
_SMALLEST_BLOCK = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged(AnyShape):
    """Sorts choices by expert; each expert computes exactly its rows, without padding.

    If loads are small or nearly even, they are padded to the largest load instead, and all experts
    are one product (see `faster_together`). Separate experts take time to start, but the weights of
    an expert without rows are then not read, as of most experts in decoding.

    It needs dynamic shapes, so it runs on TensorFlow's executor, not with XLA (use `Dropless`
    there). Every choice is computed.
    """

    one_device = True

    @property
    def static(self):
        return Dropless(groups=self.groups)

    def dispatch(self, inputs, routing, capacity, experts):
        del capacity
        num_experts, model_dim = experts.num_experts, inputs.shape[-1]
        order, counts = by_expert(routing, num_experts)
        tokens = tf.reshape(inputs, [-1, model_dim])
        weight = tf.reshape(routing.weight, [-1, routing.weight.shape[-1]])
        sizes = _round_up(counts, inputs.dtype)
        most = tf.reduce_max(sizes)

        def together(rows):
            rows = tf.reshape(rows, [num_experts, most, model_dim])
            return tf.reshape(experts.together(rows), [-1, model_dim])

        def one_by_one(rows):
            runs = tf.split(rows, sizes, num=num_experts)
            pairs = zip(experts.one_by_one(), runs, strict=True)
            return tf.concat([expert(run) for expert, run in pairs], axis=0)

        def on_runs(sizes, compute):
            slot, choice = _in_runs(order, counts, sizes)
            slot = tf.reshape(slot, tf.shape(weight))
            outputs = compute(permute(tokens, slot, choice))
            return combine(outputs, weight, slot, choice), slot < tf.size(choice)

        outputs, computed = tf.cond(
            faster_together(sizes, experts.separate_rows),
            lambda: on_runs(tf.fill(tf.shape(counts), most), together),
            lambda: on_runs(sizes, one_by_one),
        )
        stats = NestedMap(lost=lost(routing, computed))
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropless(AnyShape):
    """Experts without a capacity, as products with block-sparse matrices.

    Choices are sorted by expert, and the rows of each expert are padded with zeros to whole blocks.
    All experts are then one block-diagonal product (the paper's figure 6). Shapes are static,
    ceil(N·K/B) + E blocks, while the time follows the blocks in use, so it suits XLA. It runs on
    TensorFlow's executor too, where `Ragged` needs no padding. Every choice is computed.

    Attributes:
        block_size: B; None for the largest power of two from 8 to 128 that is at most a quarter of
            an expert's choices at balance, N·K/E. Padding then adds about an eighth to the rows.

    Raises:
        ValueError: block_size is less than 1.
    """

    one_device = True

    block_size: PositiveInt | None = None

    def dispatch(self, inputs, routing, capacity, experts):
        del capacity
        size = self.block_size or _block_size(
            routing.expert.shape.num_elements(), experts.num_experts
        )
        blocks = in_blocks(routing, experts.num_experts, size)
        rows = permute(tf.reshape(inputs, [-1, inputs.shape[-1]]), blocks.slot, blocks.choice)
        outputs = experts.by_products(rows, _products(blocks.topology, size))
        weight = tf.reshape(routing.weight, [-1, routing.weight.shape[-1]])
        outputs = combine(outputs, weight, blocks.slot, blocks.choice)
        stats = NestedMap(lost=lost(routing, blocks.slot < tf.size(blocks.choice)))
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


class Blocks(NamedTuple):
    """Choices in blocks of rows, each block for one expert.

    Attributes:
        topology: of the experts' products.
        slot: int32 [N, K], the row of each choice; R · B for none.
        choice: int32 [R · B], the choice (token · K + k) in each row; N · K for none.
    """

    topology: Topology
    slot: tf.Tensor
    choice: tf.Tensor


def in_blocks(routing: Routing, num_experts: int, block_size: int) -> Blocks:
    """Sorts the dispatched choices by expert and pads each expert's run to whole blocks.

    Args:
        routing: the choices [G, S, K].
        num_experts: E.
        block_size: B.

    Returns:
        The Blocks, Z = R = ceil(N·K/B) + E.
    """
    order, counts = by_expert(routing, num_experts)
    choices = routing.expert.shape.num_elements() or tf.size(order)
    num_rows = -(-choices // block_size) + num_experts
    row_blocks = -(-counts // block_size)
    topology = block_diagonal(row_blocks, num_rows)
    ends = tf.cumsum(row_blocks)
    expert = tf.searchsorted(ends, tf.range(num_rows), side="right")  # of a row block; E: not used
    row = tf.range(num_rows * block_size)
    expert = tf.gather(expert, row // block_size)
    place = row - tf.gather(_pad(block_size * (ends - row_blocks)), expert)
    first = tf.cumsum(counts, exclusive=True)
    sorted_choice = tf.gather(_pad(first), expert) + place
    filled = place < tf.gather(_pad(counts), expert)
    choice = tf.gather(order, tf.where(filled, sorted_choice, 0))
    choice = tf.where(filled, choice, choices)
    slot = tf.reshape(inverse(choice, choices), [-1, routing.expert.shape[-1]])
    return Blocks(topology, slot, choice)


def _pad(by_expert):
    return tf.pad(by_expert, [[0, 1]])


def _products(topology: Topology, block_size: int) -> Products:
    """The experts' two products, of rows [R · B, M] and [Z · B, H]."""

    def on_blocks(product):
        def on_rows(rows, weight):
            blocks = tf.reshape(rows, [-1, block_size, rows.shape[-1]])
            return tf.reshape(product(blocks, weight, topology), [-1, weight.shape[-1]])

        return on_rows

    def by_block(bias):  # [C, H] -> [Z, H], 0 for blocks not in use
        return tf.gather(tf.pad(bias, [[0, 1], [0, 0]]), topology.column)

    def add(rows, bias):  # a row for each block of rows
        blocks = tf.reshape(rows, [-1, block_size, rows.shape[-1]])
        return tf.reshape(blocks + bias[:, None], tf.shape(rows))

    def add_in(hidden, bias):
        return add(hidden, by_block(bias))

    def add_out(outputs, bias):
        num_rows = tf.shape(topology.offsets)[0] - 1
        summed = tf.math.unsorted_segment_sum(by_block(bias), topology.row, num_rows + 1)
        return add(outputs, summed[:-1])

    return Products(on_blocks(sampled), on_blocks(summed_by_row), add_in, add_out)


def _block_size(choices: int | None, num_experts: int) -> int:
    if choices is None:
        return _LARGEST_BLOCK
    quarter = max(choices // (4 * num_experts), _SMALLEST_BLOCK)
    return min(1 << (quarter.bit_length() - 1), _LARGEST_BLOCK)
