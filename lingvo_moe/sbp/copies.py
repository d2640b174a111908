"""Late sums: the gradient of a weight has the type P until the last micro-batch.

Devices with different rows hold copies of a weight, and its gradient is a sum over these devices.
GSPMD, the partitioner that reads TensorFlow's annotations, has no type P: it computes this sum
together with the gradient, once for each micro-batch. So P needs a dimension. A weight whose
gradient is P, by its type, gets one more: device d uses copy d, and the gradient of copy d is the
summand of device d. Summands are added over micro-batches; devices communicate only when
`sum_copies` sums the copies.

A weight may lie in one way at rest, between steps, and in another way in use, in a step. Layers
apply their weights with the functions below. These accept weights with or without this dimension,
and distinguish them by the rank.

D copies, B rows; the rows of a device are contiguous.
"""

import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.zeros import runtime_zeros
from lingvo_moe.sbp.annotations import active, annotate, attach, rest_differs, tile_sharding
from lingvo_moe.sbp.types import B, NdSbp, P, axes_of, axes_with, type_of


def expand_copies(theta: NestedMap, weights: NestedMap) -> NestedMap:
    """The weights theta with copies: [D, …], or [Y, D, …] for the layers of a scan.

    Unchanged: a weight split over an axis that also splits rows, and every weight outside of
    `use_mesh`. `weights` are their WeightSpecs.
    """

    def copied(weight, spec):
        if (here := active()) is None:
            return weight
        size = here[0].size(axes_with(P, _of_gradient(spec.dims, spec.shape, *here), here[0]))
        if size == 1:
            return weight
        place = _place(spec.dims)
        shape = [*weight.shape[:place], size, *weight.shape[place:]]
        return annotate_weight(tf.broadcast_to(tf.expand_dims(weight, place), shape), spec.dims)

    return theta.map(copied, weights)


def sum_copies(grads: NestedMap, weights: NestedMap) -> NestedMap:
    """The gradients of the result of `expand_copies`, in the shapes of the WeightSpecs: from P to
    the type of the weight in use, by one AllReduce for each."""

    def of_weight(grad, spec):
        if grad.shape.rank == len(spec.dims):
            return grad
        return annotate(
            tf.reduce_sum(annotate_weight(grad, spec.dims), _place(spec.dims)), spec.dims
        )

    return grads.map(of_weight, weights)


def annotate_weight(weight: tf.Tensor, dims: str, at_rest: bool = False) -> tf.Tensor:
    """`annotate` for a weight of these dims, or with copies, which `at_rest` does not change."""
    if (here := active()) is None or weight.shape.rank == len(dims):
        return annotate(weight, dims, at_rest)
    place = _place(dims)
    shape = (*weight.shape[:place], *weight.shape[place + 1 :])
    sbp = _of_gradient(dims, shape, *here)
    return attach(weight, tile_sharding(len(dims), sbp, here[0], place))


def gather_weight(weight: tf.Tensor, dims: str) -> tf.Tensor:
    """A weight as it is in use, if it lies otherwise at rest; else unchanged.

    The gradient of a scan's layers stays split as at rest. A gathered gradient would need the
    memory of all layers' whole gradients.
    """
    if weight.shape.rank != len(dims):
        return annotate_weight(weight, dims)
    if not rest_differs(dims):
        return weight
    if not _place(dims):
        return annotate(weight, dims)

    @custom_gradient
    def gathered(weight):
        return annotate(weight, dims), lambda upstream: annotate(upstream, dims, at_rest=True)

    return gathered(weight)


def lay_at_rest(tensor: tf.Tensor, dims: str) -> tf.Tensor:
    """A part of an update, split as its weight at rest; unchanged if all weights lie so in use too.

    If one weight lies otherwise, all updates are annotated: the compiler merges equal constants, so
    the layout of one weight could spread to another one of the same shape.
    """
    return annotate(tensor, dims, at_rest=True) if rest_differs() else tensor


def einsum(equation: str, rows: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """tf.einsum of rows [B, …] and a weight; with copies device d uses copy d.

    In "rows,weight->result" the first letter of `rows`, B, is also that of `result`.

    Raises:
        ValueError: as `split_rows`.
    """
    terms, result = equation.split("->")
    rows_term, weight_term = terms.split(",")
    if weight.shape.rank == len(weight_term):
        return tf.einsum(equation, rows, weight)
    by_copy = split_rows(rows, weight, len(weight_term))
    return merge_rows(tf.einsum(f"...{rows_term},...{weight_term}->...{result}", by_copy, weight))


def matmul(rows: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """tf.matmul of rows [R, M] and a weight [M, H]; or [E, R, M] and [E, M, H], of experts."""
    if weight.shape.rank == rows.shape.rank:
        return _product(rows, weight)
    if rows.shape.rank == 2:
        return merge_rows(tf.matmul(split_rows(rows, weight, 2), weight))
    experts, _, size = rows.shape
    by_copy = tf.reshape(rows, [experts, weight.shape[0], -1, size])
    result = tf.einsum("EDRM,DEMH->EDRH", by_copy, weight)
    return tf.reshape(result, [experts, -1, weight.shape[-1]])


def add_bias(rows: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """rows [R, H] plus a bias [H]; or [E, R, H] and [E, H], of experts."""
    if bias.shape.rank == rows.shape.rank - 1:
        return rows + (bias if rows.shape.rank == 2 else bias[:, None])
    if rows.shape.rank == 2:
        return rows + per_row(bias, 1, rows)
    experts, _, size = rows.shape
    by_copy = tf.reshape(rows, [experts, bias.shape[0], -1, size])
    return tf.reshape(by_copy + tf.transpose(bias, [1, 0, 2])[:, :, None], [experts, -1, size])


@custom_gradient
def _product(rows, weight):
    def grad(upstream):
        if weight.shape.rank == 2 and weight.shape[0] < weight.shape[1]:
            # As a batch of one: for a single product oneDNN first copies a wide transposed weight,
            # which takes a quarter of the product's time.
            d_rows = tf.matmul(upstream[None], weight[None], transpose_b=True)[0]
        else:
            d_rows = tf.matmul(upstream, weight, transpose_b=True)
        return d_rows, tf.matmul(rows, upstream, transpose_a=True)

    return tf.matmul(rows, weight), grad


def lookup(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Rows [B, …, M] of a table [V, M], with copies or without, for ids [B, …].

    The gradient is summed in float32: in bfloat16 the sum of a frequent row would lose most terms.
    """
    if table.shape.rank == 2:
        return _rows_of(table, ids)
    copies, size, _ = table.shape
    flat = tf.reshape(split_rows(ids, table, 2), [copies, -1])

    @custom_gradient
    def rows_of(table):
        def grad(upstream):
            # For TensorFlow's own gradient XLA would gather all rows on every device.
            copy = tf.broadcast_to(tf.range(copies, dtype=flat.dtype)[:, None], flat.shape)
            shape = [copies, size, upstream.shape[-1]]
            zeros = runtime_zeros(shape, tf.float32, upstream)
            places = tf.stack([copy, flat], axis=-1)
            total = tf.tensor_scatter_nd_add(zeros, places, tf.cast(upstream, tf.float32))
            return tf.cast(total, table.dtype)

        return tf.gather(table, flat, batch_dims=1), grad

    return tf.reshape(rows_of(table), [*ids.shape, table.shape[-1]])


@custom_gradient
def _rows_of(table, ids):
    def grad(upstream):
        size, width = table.shape
        terms = tf.cast(tf.reshape(upstream, [-1, width]), tf.float32)
        total = tf.math.unsorted_segment_sum(terms, tf.reshape(ids, [-1]), size)
        return tf.cast(total, table.dtype), None

    return tf.gather(table, ids), grad


def per_row(weight: tf.Tensor, rank: int, rows: tf.Tensor) -> tf.Tensor:
    """The weight in a shape that broadcasts with rows; each row gets the copy of its device.

    Args:
        weight: [*s], or with copies [D, *s], which become [B, 1, …, *s].
        rank: the number of dimensions of s.
        rows: [B, …, *s].
    """
    if weight.shape.rank == rank:
        return weight
    ones = [1] * (rows.shape.rank - rank - 1)
    by_copy = tf.reshape(weight, [weight.shape[0], 1, *ones, *weight.shape[1:]])
    size = rows.shape[0] // weight.shape[0]
    shape = [weight.shape[0], size, *by_copy.shape[2:]]
    return merge_rows(tf.broadcast_to(by_copy, shape))


def split_rows(rows: tf.Tensor, weight: tf.Tensor, rank: int) -> tf.Tensor:
    """[B, …] as [D, B / D, …]: for each copy of a weight the rows of its device.

    Without copies, when the weight has this rank, rows are unchanged.

    Raises:
        ValueError: the rows do not divide into equal parts.
    """
    if weight.shape.rank == rank:
        return rows
    copies = weight.shape[0]
    if rows.shape[0] % copies:
        raise ValueError(
            f"{rows.shape[0]} rows of a micro-batch cannot be split equally for {copies} "
            f"devices; change input.batch_size, train.micro_batches or the mesh."
        )
    return tf.reshape(rows, [copies, -1, *rows.shape[1:]])


def merge_rows(by_copy: tf.Tensor) -> tf.Tensor:
    """[D, B / D, …] as [B, …]: the inverse of `split_rows` for a weight with copies."""
    return tf.reshape(by_copy, [-1, *by_copy.shape[2:]])


def _of_gradient(dims, shape, mesh, rules) -> NdSbp:
    """The type of a weight's gradient before its sum: that of the weight, and P along the axes that
    split the rows which are multiplied with it, of experts or a batch, if none splits the weight.
    """
    rows = axes_of("r" if "E" in dims else "B", rules)
    sbp = type_of(dims, shape, mesh, rules)
    late = set(rows) <= set(axes_with(B, sbp, mesh))
    pairs = zip(mesh.axes, sbp, strict=True)
    return NdSbp(P if late and axis in rows else one for axis, one in pairs)


def _place(dims: str) -> int:
    """The index of the dimension of copies: after that of a scan's layers."""
    return int(dims.startswith("Y"))
