"""R row blocks of B rows, C column blocks of H columns, Z blocks, M dense, E experts."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.megablocks.block_sparse import (
    Topology,
    block_diagonal,
    sampled,
    summed_by_column,
    summed_by_row,
)

BLOCK, MODEL, HIDDEN = 3, 4, 5
# (row blocks of each expert, R, column blocks of each expert)
EQUAL = [2, 0, 3, 1], 8, [1, 1, 1, 1]
LAYOUTS = {
    "equal experts": EQUAL,
    "one expert": ([3], 4, [1]),
    "all to the last": ([0, 0, 5], 5, [1, 1, 1]),
    "nothing": ([0, 0], 2, [1, 1]),
    "sizes differ": ([2, 1, 0, 2], 6, [3, 1, 2, 2]),
}


def blocks(layout):
    """(row, column) of the blocks in use, counted out expert by expert, row by row."""
    row_blocks, _, column_blocks = layout
    result, row, column = [], 0, 0
    for rows, columns in zip(row_blocks, column_blocks, strict=True):
        result += [(row + i, column + j) for i in range(rows) for j in range(columns)]
        row, column = row + rows, column + columns
    return result


def num_blocks(layout):
    return layout[1] * max(layout[2])


def topology(layout):
    """Of any layout, from the list of its blocks."""
    _, num_rows, column_blocks = layout
    size, num_columns, used = num_blocks(layout), sum(column_blocks), blocks(layout)
    at = np.array([*used, *[(num_rows, num_columns)] * (size - len(used))], np.int32)
    row, column = at.reshape(-1, 2).T
    offsets = np.searchsorted(row, np.arange(num_rows + 1)).astype(np.int32)
    order = np.argsort(column, kind="stable").astype(np.int32)
    column_offsets = np.searchsorted(column[order], np.arange(num_columns + 1)).astype(np.int32)
    return Topology(*map(tf.constant, (row, column, offsets, order, column_offsets)))


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def operands(layout):
    """rows [R, B, M], values [Z, B, H] (garbage where not in use), wi [C, M, H], wo [C, H, M]."""
    num_columns = sum(layout[2])
    return (
        random(layout[1], BLOCK, MODEL),
        random(num_blocks(layout), BLOCK, HIDDEN),
        random(num_columns, MODEL, HIDDEN),
        random(num_columns, HIDDEN, MODEL),
    )


def dense(values, layout):
    """The sparse matrix [R · B, C · H] written out."""
    matrix = np.zeros([layout[1] * BLOCK, sum(layout[2]) * HIDDEN], np.float32)
    for value, (row, column) in zip(values, blocks(layout), strict=False):
        matrix[row * BLOCK :][:BLOCK, column * HIDDEN :][:, :HIDDEN] = value
    return matrix


def at_blocks(matrix, layout):
    """The values [Z, B, H] of a dense matrix at the blocks in use, zeros after them."""
    values = np.zeros([num_blocks(layout), BLOCK, HIDDEN], np.float32)
    for value, (row, column) in zip(values, blocks(layout), strict=False):
        value[:] = matrix[row * BLOCK :][:BLOCK, column * HIDDEN :][:, :HIDDEN]
    return values


def products(layout):
    """name -> (product, its two operands, what NumPy makes of the matrices written out)."""
    rows, values, wi, wo = operands(layout)
    sparse, tall = dense(values, layout), rows.reshape(-1, MODEL)
    wide_in = wi.transpose(1, 0, 2).reshape(MODEL, -1)  # [M, C · H]
    wide_out = wo.reshape(-1, MODEL)  # [C · H, M]
    by_column = wi.shape[0], HIDDEN, MODEL
    return {
        "SDD": (sampled, rows, wi, at_blocks(tall @ wide_in, layout)),
        "DSD": (summed_by_row, values, wo, (sparse @ wide_out).reshape(rows.shape)),
        "SDDT": (partial(sampled, transpose=True), rows, wo, at_blocks(tall @ wide_out.T, layout)),
        "DSTD": (
            partial(summed_by_column, transpose=True),
            rows,
            values,
            (sparse.T @ tall).reshape(by_column),
        ),
        "DSDT": (
            partial(summed_by_row, transpose=True),
            values,
            wi,
            (sparse @ wide_in.T).reshape(rows.shape),
        ),
        "DDTS": (
            summed_by_column,
            rows,
            values,
            (sparse.T @ tall).reshape(by_column).transpose(0, 2, 1),
        ),
    }


PRODUCTS = list(products(EQUAL))


def test_a_topology_by_hand():
    # Experts of 2 and 1 row blocks:   X .
    #                                  X .
    #                                  . X   and room for a fourth row.
    got = block_diagonal(tf.constant([2, 1]), 4)
    np.testing.assert_array_equal(got.row, [0, 1, 2, 4])
    np.testing.assert_array_equal(got.column, [0, 0, 1, 2])
    np.testing.assert_array_equal(got.offsets, [0, 1, 2, 3, 3])
    np.testing.assert_array_equal(got.order, [0, 1, 2, 3])
    np.testing.assert_array_equal(got.column_offsets, [0, 2, 3])


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "sizes differ"])
def test_the_topology_lists_every_block_once(name):
    layout = LAYOUTS[name]
    got, expected = block_diagonal(tf.constant(layout[0]), layout[1]), topology(layout)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_products_against_dense_ones(layout, name):
    product, left, right, expected = products(layout)[name]
    np.testing.assert_allclose(product(left, right, topology(layout)), expected, atol=1e-5)


def gradients(product, left, right, layout):
    """Of a sum that weighs every element differently; garbage upstream of blocks not in use."""
    left, right = tf.constant(left), tf.constant(right)
    with tf.GradientTape() as tape:
        tape.watch([left, right])
        outputs = product(left, right, topology(layout))
        total = tf.reduce_sum(outputs * random(*outputs.shape, seed=1))
    return tape.gradient(total, [left, right])


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_against_dense_ones(name):
    # A product is linear in each operand, so <gradient, operand> is the sum that was differentiated
    # and a change of one operand changes it by <gradient, change>.
    layout = LAYOUTS["sizes differ"]
    product, *sides, _ = products(layout)[name]
    grads = gradients(product, *sides, layout)

    def total(left, right):
        outputs = product(left, right, topology(layout))
        return np.sum(outputs * random(*outputs.shape, seed=1), dtype=np.float64)

    for side in (0, 1):
        for seed in (2, 3, 4):
            changed = list(sides)
            changed[side] = random(*sides[side].shape, seed=seed)
            expected = total(*changed)
            np.testing.assert_allclose(np.sum(grads[side] * changed[side]), expected, rtol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_stay_within_the_blocks_in_use(name):
    layout = LAYOUTS["equal experts"]
    product, left, right, _ = products(layout)[name]
    grads = gradients(product, left, right, layout)
    used, num_rows = len(blocks(layout)), layout[1]  # a block a row
    by_block = [grad.numpy() for grad in grads if grad.shape[0] == num_rows]
    assert by_block
    for grad in by_block:
        assert not np.any(grad[used:])
        assert np.all(np.any(grad[:used], axis=(1, 2)))


def test_gradients_of_gradients():
    # f = Σ (x·w)³ / 3 over one block: ∂f/∂x = (x·w)²·wᵀ, ∂/∂w of its sum checked by differences.
    layout = ([1], 1, [1])
    rows, wi = tf.constant(random(1, 2, 3)), tf.constant(random(1, 3, 2, seed=5))

    def slope(product, wi):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            total = tf.reduce_sum(product(rows, wi) ** 3) / 3
        return tf.reduce_sum(tape.gradient(total, rows))

    def second(product):
        with tf.GradientTape() as tape:
            tape.watch(wi)
            value = slope(product, wi)
        return tape.gradient(value, wi)

    ours = second(lambda rows, wi: sampled(rows, wi, topology(layout)))
    np.testing.assert_allclose(ours, second(tf.matmul), rtol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_xla_gives_the_same(name):
    layout = EQUAL
    product, left, right, expected = products(layout)[name]

    @tf.function(autograph=False, jit_compile=True)
    def compiled(left, right, row_blocks):
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            outputs = product(left, right, block_diagonal(row_blocks, layout[1]))
            total = tf.reduce_sum(outputs * random(*outputs.shape, seed=1))
        return outputs, tape.gradient(total, [left, right])

    sides = tf.constant(left), tf.constant(right)
    outputs, grads = compiled(*sides, tf.constant(layout[0]))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for got, wanted in zip(grads, gradients(product, left, right, layout), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_bfloat16_sums_in_float32():
    # 600 blocks of ones: bfloat16 would stop counting at 256.
    rows = tf.ones([600, 1, 1], tf.bfloat16)
    layout = block_diagonal(tf.constant([600]), 600)
    outputs = summed_by_column(rows, rows, layout)
    assert outputs.dtype == tf.bfloat16
    assert outputs[0, 0, 0] == 600


def test_experts_of_different_sizes_against_each_alone():
    # Hidden layers of 3, 1, 2 and 2 column blocks: relu(x·wi)·wo of each expert on its own rows.
    layout = LAYOUTS["sizes differ"]
    row_blocks, _, column_blocks = layout
    rows, _, wi, wo = operands(layout)

    def together(wi, wo):
        return summed_by_row(tf.nn.relu(sampled(rows, wi, topology(layout))), wo, topology(layout))

    def alone(wi, wo):
        row, column, outputs = 0, 0, []
        for height, width in zip(row_blocks, column_blocks, strict=True):
            mine = rows[row : row + height].reshape(-1, MODEL)
            into = tf.concat(tf.unstack(wi[column : column + width]), axis=1)
            out_of = tf.concat(tf.unstack(wo[column : column + width]), axis=0)
            outputs.append(tf.nn.relu(mine @ into) @ out_of)
            row, column = row + height, column + width
        left_over = tf.zeros([(layout[1] - row) * BLOCK, MODEL])
        return tf.reshape(tf.concat([*outputs, left_over], axis=0), rows.shape)

    results = []
    for run in (together, alone):
        weights = tf.constant(wi), tf.constant(wo)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = run(*weights)
            total = tf.reduce_sum(tf.sin(outputs))
        results.append([outputs, *tape.gradient(total, weights)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
