"""Products with block-sparse matrices (MegaBlocks, Gale et al. 2022, arXiv 2211.15841, section 5).

R row blocks of B rows, C column blocks of H columns, Z blocks (a bound), M the dense dimension,
E experts.

A sparse matrix of R·B rows and C·H columns stores only the blocks of its `Topology`, as values
[Z, B, H]. Dense matrices are stored in blocks too: [R, B, M] if they have the rows of the sparse
matrix; [C, H, M] or [C, M, H] if their rows or columns correspond to its columns. An expert has one
column block, so the latter are the usual layouts of weights.

There are three products in two forms each. A form gives its result and its operands: S sparse, D
dense, ᵀ transposed. Shapes are static, so XLA can compile them; loops run over the blocks in use,
and the time follows the work. A loop reads slices of the weights, without copying weights for each
block. The gradient of each product consists of the other two, so gradients of any order work.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient


class Topology(NamedTuple):
    """The non-zero blocks of a sparse matrix, in the paper's hybrid of CSR and COO (section 5.1).

    Attributes:
        row: int32 [Z], the row of each block, ascending; R for blocks not in use, which are last.
        column: int32 [Z], the column of each block; C for blocks not in use.
        offsets: int32 [R + 1], row r has the blocks from offsets[r] up to offsets[r + 1].
        order: int32 [Z], the blocks sorted by column, then row, for transposed products.
        column_offsets: int32 [C + 1], column c has the blocks order[i], for i from
            column_offsets[c] up to column_offsets[c + 1].
    """

    row: tf.Tensor
    column: tf.Tensor
    offsets: tf.Tensor
    order: tf.Tensor
    column_offsets: tf.Tensor


def block_diagonal(row_blocks: tf.Tensor, num_rows: int | tf.Tensor) -> Topology:
    """The topology of a block-diagonal matrix: the rows of an expert have blocks in its column.

    Args:
        row_blocks: int32 [E], the number of row blocks of each expert, in order of experts.
        num_rows: R, a bound on their sum.

    Returns:
        The Topology, with Z = R and C = E. Blocks by row are also by column.
    """
    ends, row = tf.cumsum(row_blocks), tf.range(num_rows)
    return Topology(
        row=tf.where(row < ends[-1], row, num_rows),
        column=tf.searchsorted(ends, row, side="right"),
        offsets=tf.minimum(tf.range(num_rows + 1), ends[-1]),
        order=row,
        column_offsets=tf.concat([[0], ends], axis=0),
    )


def sampled(
    rows: tf.Tensor, weight: tf.Tensor, topology: Topology, transpose: bool = False
) -> tf.Tensor:
    """S = D·D, where S has blocks: the experts' first layer. With transpose S = D·Dᵀ.

    Args:
        rows: [R, B, M].
        weight: [C, M, H]; with transpose [C, H, M].
        topology: of the result.
        transpose: gives the second layer's data gradient.

    Returns:
        [Z, B, H], zero in blocks not in use.
    """

    @custom_gradient
    def product(rows, weight):
        def of_block(z):
            left, right = _at(rows, _at(topology.row, z)), _at(weight, _at(topology.column, z))
            return tf.matmul(left, right, transpose_b=transpose)

        def grad(upstream):
            return (
                summed_by_row(upstream, weight, topology, not transpose),
                summed_by_column(rows, upstream, topology, transpose),
            )

        shape = (rows.shape[1], weight.shape[1 if transpose else 2])
        return _stacked(of_block, topology.row, topology.offsets[-1], shape, rows.dtype), grad

    return product(rows, weight)


def summed_by_row(
    values: tf.Tensor, weight: tf.Tensor, topology: Topology, transpose: bool = False
) -> tf.Tensor:
    """D = S·D: the experts' second layer. With transpose D = S·Dᵀ.

    Args:
        values: [Z, B, H].
        weight: [C, H, M]; with transpose [C, M, H].
        topology: of values.
        transpose: gives the first layer's data gradient.

    Returns:
        [R, B, M], zero in rows without a block.
    """

    @custom_gradient
    def product(values, weight):
        def of_block(z):
            right = _at(weight, _at(topology.column, z))
            return tf.matmul(_at(values, z), right, transpose_b=transpose)

        def of_row(r):
            start, end = _at(topology.offsets, r), _at(topology.offsets, r + 1)
            return tf.cast(_sum(of_block, start, end, shape), values.dtype)

        def grad(upstream):
            return (
                sampled(upstream, weight, topology, not transpose),
                summed_by_column(upstream, values, topology, not transpose),
            )

        shape = (values.shape[1], weight.shape[1 if transpose else 2])
        num_rows = tf.shape(topology.offsets)[0] - 1
        return _stacked(of_row, topology.offsets[1:], num_rows, shape, values.dtype), grad

    return product(values, weight)


def summed_by_column(
    rows: tf.Tensor, values: tf.Tensor, topology: Topology, transpose: bool = False
) -> tf.Tensor:
    """D = Dᵀ·S: the first layer's weight gradient. With transpose D = Sᵀ·D, the second layer's.

    Args:
        rows: [R, B, M].
        values: [Z, B, H].
        topology: of values.
        transpose: whether the result is transposed.

    Returns:
        [C, M, H], with transpose [C, H, M]; zero in columns without a block.
    """

    @custom_gradient
    def product(rows, values):
        def of_block(i):
            z = _at(topology.order, i)
            left, right = _at(rows, _at(topology.row, z)), _at(values, z)
            if transpose:
                left, right = right, left
            return tf.matmul(left, right, transpose_a=True)

        def of_column(c):
            start, end = _at(topology.column_offsets, c), _at(topology.column_offsets, c + 1)
            return tf.cast(_sum(of_block, start, end, shape), values.dtype)

        def grad(upstream):
            return (
                summed_by_row(values, upstream, topology, not transpose),
                sampled(rows, upstream, topology, transpose),
            )

        shape = (rows.shape[2], values.shape[2])
        shape = shape[::-1] if transpose else shape
        num_columns = topology.column_offsets.shape[0] - 1
        ends = topology.column_offsets[1:]
        return _stacked(of_column, ends, num_columns, shape, values.dtype), grad

    return product(rows, values)


def _sum(part: Callable[[tf.Tensor], tf.Tensor], start, end, shape) -> tf.Tensor:
    """Σ part(i) over start ≤ i < end, in float32."""

    def add(i, total):
        return i + 1, total + tf.cast(part(i), tf.float32)

    return tf.while_loop(lambda i, _: i < end, add, (start, tf.zeros(shape)))[1]


def _stacked(part: Callable[[tf.Tensor], tf.Tensor], like, end, shape, dtype) -> tf.Tensor:
    """[size of like, *shape]: part(i) for i < end, zeros after it."""
    size = like.shape[0] or tf.shape(like)[0]
    parts = tf.TensorArray(dtype, size, element_shape=shape)
    done = tf.while_loop(
        lambda i, _: i < end, lambda i, parts: (i + 1, parts.write(i, part(i))), (0, parts)
    )
    return tf.ensure_shape(done[1].stack(), [like.shape[0], *shape])


def _at(values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """values[index] as a gather; for [] the XLA bridge would evaluate the index at compile time."""
    return tf.gather(values, index)
