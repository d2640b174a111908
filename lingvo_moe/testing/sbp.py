"""Tensors of the split-broadcast-partial algebra from their pieces."""

import numpy as np

from lingvo_moe.sbp.types import NdSbp, P, S
from lingvo_moe.sharding.annotations import Mesh


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
