"""Gradients of many micro-batches, summed over devices once.

Each device adds up the gradients of its own rows; what it has is a summand, and the sums over
devices can wait for the last micro-batch (see partial.py). B rows.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding.annotations import active, annotate
from lingvo_moe.sharding.partial import Placed, copies, place, reduce_partial
from lingvo_moe.sharding.sbp import B, NdSbp, P

_ROWS = "B"


def accumulate(
    losses: Callable[[NestedMap, NestedMap], tf.Tensor],
    theta: NestedMap,
    weights: NestedMap,
    batch: NestedMap,
    micro_batches: int,
) -> tuple[tf.Tensor, NestedMap]:
    """The loss of a batch and its gradient, one micro-batch after the other.

    Weights that devices hold copies of along the axes that cut the rows have their gradients summed
    along those axes once, at the end; a weight that is cut there, as experts are, has nothing to be
    summed.

    Args:
        losses: takes weights as a tree of Placed, which it uses by `partial.einsum`, and a
            micro-batch; gives float32 [rows], the losses that add up to the batch's.
        theta: weights.
        weights: their WeightSpecs.
        batch: tensors [B, …], of static shape.
        micro_batches: how many; each device's rows are cut into as many.

    Returns:
        The loss [], and the gradients, a tree parallel to theta.

    Raises:
        ValueError: rows that do not fall into equal parts.
    """
    held = theta.map(lambda w, spec: _shown(place(w, spec.dims)), weights)
    values = held.map(lambda placed: placed.value)
    loss, grads = None, None
    for part in cut_rows(batch, micro_batches):
        with tf.GradientTape() as tape:
            values.map(tape.watch)
            rows = losses(held, part)
        part_grads = tape.gradient(rows, values).map(tf.convert_to_tensor)
        loss = rows if loss is None else loss + rows
        grads = part_grads if grads is None else grads.map(tf.add, part_grads)
    return tf.reduce_sum(loss), grads.map(_reduced, held)


def cut_rows(batch: NestedMap, micro_batches: int) -> Iterator[NestedMap]:
    """Micro-batches that take from each device rows that it holds, so that none has to move.

    Raises:
        ValueError: as `accumulate`.
    """
    devices = _row_devices()

    def parts(x):
        if x.shape[0] % (devices * micro_batches):
            raise ValueError(
                f"{x.shape[0]} rows do not fall into {micro_batches} micro-batches of equal parts "
                f"for {devices} devices; change the batch size or the number of micro-batches."
            )
        size = x.shape[0] // (devices * micro_batches)
        whole = x.shape[1:]
        x = tf.reshape(x, [devices, micro_batches, size, *whole])
        return tf.unstack(annotate(x, _ROWS + "-" * (x.shape.rank - 1)), axis=1)

    cut = batch.map(parts)
    for i in range(micro_batches):
        yield cut.map(lambda x, i=i: tf.reshape(x[i], [-1, *x[i].shape[2:]]))


def _shown(placed: Placed) -> Placed:
    """With its copies along the axes that cut the rows."""
    return copies(placed, [axis for axis in _row_axes() if placed.on(axis) == B])


def _reduced(grad: tf.Tensor, held: Placed) -> tf.Tensor:
    """From each device's contribution to the gradient of a weight."""
    if not held.explicit:
        return grad
    mesh, _ = active()
    summands = NdSbp(P if axis in held.explicit else held.on(axis) for axis in mesh.axes)
    return reduce_partial(Placed(grad, summands, held.explicit))


def _row_axes() -> tuple[str, ...]:
    """The axes that cut rows."""
    axes = active()[1].get(_ROWS, ()) if active() else ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _row_devices() -> int:
    return active()[0].size(_row_axes()) if active() else 1
