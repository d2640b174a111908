"""Logical-axis rules: layers name dimensions by letters, rules give the mesh axes of each letter.

GShard section 3: with annotations, XLA partitions a program for one device over many devices.
Layers call `annotate(x, "EgCM")`; outside of `use_mesh` this is the identity.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from lingvo_moe.nn import random
from lingvo_moe.nn.tensorflow_private import xla_sharding
from lingvo_moe.sbp.types import B, Mesh, NdSbp, P, Rules, axes_of, axes_with, cuts, type_of

# The mesh, the rules for computation, and the rules for weights and slots at rest.
_active: contextvars.ContextVar[tuple[Mesh, Rules, Rules] | None] = contextvars.ContextVar(
    "mesh_and_rules", default=None
)


@contextlib.contextmanager
def use_mesh(
    mesh: Mesh, rules: Rules, at_rest: Rules | None = None, cut_random: bool = False
) -> Iterator[None]:
    """Within this context `annotate` adds XLA sharding annotations for this mesh and these rules.

    Args:
        mesh: the devices.
        rules: for activations and weights in use.
        at_rest: for weights and slots between steps; None for the same rules.
        cut_random: whether the compiler can partition the random number generator, as for TPUs,
            which needs a third of the memory. Otherwise numbers are drawn elementwise, which all
            compilers can partition.
    """
    token = _active.set((mesh, rules, rules if at_rest is None else at_rest))
    try:
        with contextlib.nullcontext() if cut_random else random.draw_elementwise():
            yield
    finally:
        _active.reset(token)


def annotate(tensor: tf.Tensor, dims: str, at_rest: bool = False) -> tf.Tensor:
    """The tensor with an XLA annotation of its sharding; unchanged outside of `use_mesh`.

    Args:
        tensor: any rank.
        dims: one letter a dimension, from the alphabet of the calling module.
        at_rest: whether to use the rules for weights and slots between steps.

    Raises:
        ValueError: as `type_of`.
    """
    if (here := _active.get()) is None:
        return tensor
    mesh, *rules = here
    sbp = type_of(dims, tuple(tensor.shape), mesh, rules[at_rest])
    return attach(tensor, tile_sharding(len(dims), sbp, mesh))


def rest_differs(dims: str | None = None) -> bool:
    """Whether weights lie otherwise at rest than in use: any, or those of these dims."""
    if (here := _active.get()) is None:
        return False
    _, *rules = here
    letters = set().union(*rules) if dims is None else dims
    return any(axes_of(letter, rules[0]) != axes_of(letter, rules[1]) for letter in letters)


def active(at_rest: bool = False) -> tuple[Mesh, Rules] | None:
    """The current mesh and rules, as for `annotate`; None outside of `use_mesh`."""
    if (here := _active.get()) is None:
        return None
    mesh, *rules = here
    return mesh, rules[at_rest]


def num_pieces(letter: str) -> int:
    """The number of pieces that a dimension of that letter has here; 1 outside of `use_mesh`."""
    if (here := active()) is None:
        return 1
    mesh, rules = here
    return mesh.size(axes_of(letter, rules))


def attach(tensor: tf.Tensor, sharding: xla_sharding.Sharding) -> tf.Tensor:
    """The tensor with this annotation, which its gradient gets too.

    Raises:
        ValueError: outside of a graph, where no compiler would read it.
    """
    if tf.executing_eagerly():
        raise ValueError("Annotations on a mesh have an effect only in a tf.function; use one.")
    return sharding.apply_to_tensor(tensor, use_sharding_op=True)


def tile_sharding(
    rank: int, sbp: NdSbp, mesh: Mesh, summands: int | None = None
) -> xla_sharding.Sharding:
    """XLA's description of the type of a tensor.

    Args:
        rank: the number of dimensions.
        sbp: the type, P only with `summands`.
        mesh: the devices.
        summands: the index of one more dimension, for P: summand d belongs to device d.
    """
    axes = cuts(rank, sbp, mesh)
    if summands is not None:
        axes.insert(summands, axes_with(P, sbp, mesh))
    split = [axis for group in axes for axis in group]
    if not split:
        return xla_sharding.Sharding.replicate()
    whole = axes_with(B, sbp, mesh)
    order = [mesh.axes.index(axis) for axis in (*split, *whole)]
    pieces = [mesh.size(group) for group in axes]
    devices = np.arange(math.prod(mesh.shape)).reshape(mesh.shape).transpose(order)
    if not whole:
        return xla_sharding.Sharding.tile(devices.reshape(pieces))
    return xla_sharding.Sharding.partial_tile(devices.reshape([*pieces, mesh.size(whole)]))
