"""GShard's manual annotations and manual regions (Lepikhin et al. 2020, section 3.2).

Layers use letters and rules (see annotations.py). These functions place the pieces of a tensor on
devices by number, or run code on the piece of one device.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.tensorflow_private import xla_sharding
from lingvo_moe.sbp.annotations import active, attach, tile_sharding, use_mesh
from lingvo_moe.sbp.types import cuts, piece_shape, type_of


def replicate(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, annotated with a copy on every device; unchanged outside of `use_mesh`.

    Raises:
        ValueError: on a mesh outside of a tf.function.
    """
    return attach(tensor, xla_sharding.Sharding.replicate()) if active() else tensor


def split(tensor: tf.Tensor, split_dimension: int, num_partitions: int) -> tf.Tensor:
    """The tensor, split along one dimension; piece i is on device i.

    Args:
        tensor: any rank; the compiler pads uneven pieces.
        split_dimension: the dimension, from 0.
        num_partitions: the number of devices of the mesh; 1 for copies.

    Raises:
        ValueError: another dimension or number, or as `shard`.
    """
    shape = [1] * (tensor.shape.rank or 0)
    if split_dimension not in range(len(shape)) or not 1 <= num_partitions == int(num_partitions):
        raise ValueError(
            f"split_dimension must be a dimension of the shape {tensor.shape}, from 0, and "
            f"num_partitions 1 or more, got {split_dimension} and {num_partitions}."
        )
    shape[split_dimension] = int(num_partitions)
    return shard(tensor, np.arange(num_partitions).reshape(shape))


def shard(tensor: tf.Tensor, device_assignment: np.ndarray | Sequence) -> tf.Tensor:
    """The tensor, split along any dimensions, with a given device for each piece.

    A [3, 16, 64] tensor with an assignment of shape [1, 2, 4] has pieces of [3, 8, 16].

    Args:
        tensor: any rank; unchanged outside of `use_mesh`.
        device_assignment: integers of the same rank. The shape gives the number of pieces of each
            dimension, the entries the device of each piece: all of the mesh, each once. A single
            piece, of device 0, is copied to every device.

    Raises:
        ValueError: another rank, more pieces than elements, other devices than those of the mesh,
            or on a mesh outside of a tf.function.
    """
    devices = np.asarray(device_assignment)
    here = active()
    count = math.prod(here[0].shape) if here and devices.size != 1 else devices.size
    if (
        tensor.shape.rank != devices.ndim
        or any(n > (size or n) for n, size in zip(devices.shape, tensor.shape, strict=True))
        or sorted(devices.ravel().tolist()) != list(range(count))
    ):
        raise ValueError(
            f"device_assignment must have the rank of {tensor.shape}, at most its shape, and hold "
            f"each device of 0 … {count - 1} once, got {devices.tolist()}."
        )
    if here is None or devices.size == 1:
        return replicate(tensor)
    return attach(tensor, xla_sharding.Sharding.tile(devices.astype(int)))


def manual(
    function: Callable[..., tf.Tensor],
    tensors: Sequence[tf.Tensor],
    dims: Sequence[str],
    result_dims: str | Sequence[str],
    at_rest: bool = False,
) -> Any:
    """A manual region, which XLA does not partition: function runs on the pieces of each device.

    The function is the program of one device and must not need the pieces of others. The gradient
    is a manual region too and recomputes the function. Outside of `use_mesh` there is one device,
    and the function gets whole tensors.

    Args:
        function: pieces of the tensors -> the piece of the result, or a sequence of pieces.
        tensors: of static shapes.
        dims, result_dims: one letter a dimension; the current rules give the sharding. For several
            results a sequence of letters.
        at_rest: whether the pieces are those of weights and slots between steps.

    Raises:
        ValueError: as `type_of`, or a tensor does not divide into equal pieces.
    """
    if (here := active(at_rest)) is None:
        return function(*tensors)
    mesh, rules = here
    if isinstance(result_dims, str):
        (result,) = manual(
            lambda *pieces: [function(*pieces)], tensors, dims, [result_dims], at_rest
        )
        return result

    @custom_gradient
    def region(*tensors):
        results = _by_hand(function, tensors, dims, result_dims, mesh, rules)

        def grad(*upstream):
            floats = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating]

            def backward(*given):
                upstream, pieces = given[: len(results)], given[len(results) :]
                with tf.GradientTape() as tape:
                    tape.watch([pieces[i] for i in floats])
                    outputs = function(*pieces)
                return tape.gradient(outputs, [pieces[i] for i in floats], upstream)

            given, letters = [*upstream, *tensors], [*result_dims, *dims]
            with use_mesh(mesh, rules):
                grads = _by_hand(backward, given, letters, [dims[i] for i in floats], mesh, rules)
            by_input = dict(zip(floats, grads, strict=True))
            return [by_input.get(i) for i in range(len(tensors))]

        return results, grad

    return region(*tensors)


def _by_hand(function, tensors, dims, result_dims, mesh, rules):
    """The results of function on all devices."""
    pieces = []
    for tensor, letters in zip(tensors, dims, strict=True):
        shape = tuple(tensor.shape)
        sbp = type_of(letters, shape, mesh, rules)
        piece_shape(shape, sbp, mesh, letters, repr(letters))
        sharding = _serialized(len(shape), sbp, mesh)
        pieces.append(xla_sharding.auto_to_manual_spmd_partition(tensor, sharding))
    results = _apart(function, pieces)
    whole = []
    for result, letters in zip(results, result_dims, strict=True):
        sbp = type_of(letters, (None,) * len(letters), mesh, rules)
        groups = cuts(len(letters), sbp, mesh)
        full = [size * mesh.size(group) for size, group in zip(result.shape, groups, strict=True)]
        sharding = _serialized(len(letters), sbp, mesh)
        whole.append(xla_sharding.manual_to_auto_spmd_partition(result, sharding, full))
    return whole


def _apart(function, pieces):
    """function(*pieces), as the only branch of a conditional.

    The compiler merges equal constants of a computation, and would take operations around the
    region for a part of it if they used the same constant. A branch is a computation of its own. It
    is taken whatever the index is; the compiler puts it in line after it has partitioned.
    """
    specs = [tf.TensorSpec(piece.shape, piece.dtype) for piece in pieces]
    branch = tf.function(
        lambda *pieces: [tf.identity(result) for result in function(*pieces)], autograph=False
    ).get_concrete_function(*specs)
    return tf.raw_ops.StatelessCase(
        branch_index=tf.cast(pieces[0][(0,) * pieces[0].shape.rank], tf.int32),
        input=pieces,
        Tout=[result.dtype for result in branch.outputs],
        branches=[branch],
        output_shapes=[result.shape for result in branch.outputs],
    )


def _serialized(rank, sbp, mesh):
    return tile_sharding(rank, sbp, mesh).proto.SerializeToString()
