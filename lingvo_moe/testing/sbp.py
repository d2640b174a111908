"""The pieces of tensors in the split-broadcast-partial algebra: its definition, in NumPy."""

import numpy as np

from lingvo_moe.sbp.types import B, Mesh, NdSbp, P, S, Split, piece_shape


def cut(array: np.ndarray, sbp: NdSbp, mesh: Mesh, random: np.random.Generator) -> np.ndarray:
    """The pieces of all devices: the definition of the types, in NumPy.

    Args:
        array: the whole tensor.
        sbp: its type.
        mesh: the devices.
        random: draws the summands of P: integers below 100, except for the last summand.

    Returns:
        [*mesh.shape, *piece_shape].

    Raises:
        ValueError: as `piece_shape`.
    """
    piece_shape(array.shape, sbp, mesh)
    for axis, (one, size) in enumerate(zip(sbp, mesh.shape, strict=True)):
        if isinstance(one, Split):
            parts = np.split(array, size, axis=axis + one.dim)
        elif one == B:
            parts = [array] * size
        else:
            summands = random.integers(-99, 100, (size - 1, *array.shape)).astype(array.dtype)
            parts = [*summands, array - summands.sum(0)]
        array = np.stack(parts, axis=axis)
    return array


def join(pieces: np.ndarray, sbp: NdSbp, mesh: Mesh) -> np.ndarray:
    """Joins the pieces that devices hold to the whole tensor; the inverse of `cut`."""
    for axis in reversed(range(len(mesh.axes))):
        parts, one = np.moveaxis(pieces, axis, 0), sbp[axis]
        if isinstance(one, S):
            pieces = np.concatenate(list(parts), axis=axis + one.dim)
        elif one == P:
            pieces = parts.sum(0)
        else:
            assert np.allclose(parts, parts[:1]), f"{sbp}: copies along {mesh.axes[axis]} differ"
            pieces = parts[0]
    return pieces
