"""Dropless experts on one device as block-sparse products (MegaBlocks).

Gale et al. 2022, MegaBlocks, arXiv 2211.15841.

G groups, S tokens per group, N = G·S tokens, K choices, E experts, M model, H hidden, R row blocks
of B rows, C column blocks of H columns, Z blocks.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.megablocks.block_sparse import Topology, block_diagonal, sampled, summed_by_row
from lingvo_moe.moe.dispatch import (
    AnyShape,
    Dispatched,
    by_expert,
    combine,
    inverse,
    lost,
    permute,
)
from lingvo_moe.moe.feed_forward import Products
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.nested_map import NestedMap

_LARGEST_BLOCK = 128  # the paper's, section 5.1.2
_SMALLEST_BLOCK = 8


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
