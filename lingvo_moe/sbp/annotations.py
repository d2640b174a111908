"""Logical-axis rules: layers name dimensions by letters, rules give the mesh axes of each letter.

GShard section 3: with annotations, XLA partitions a program for one device over many devices.
Layers call `annotate(x, "EGCM")`; outside of `use_mesh` this is the identity.
"""

import contextlib
import contextvars
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from lingvo_moe.nn import random
from lingvo_moe.nn.tensorflow_private import xla_sharding

Rules = Mapping[str, str | tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices in a grid with named axes, in row-major order: Mesh(("data", "expert"), (2, 4))."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __post_init__(self):
        if len(set(self.axes)) != len(self.shape) or min(self.shape, default=1) < 1:
            raise ValueError(
                f"A mesh needs a distinct name for each size, and sizes of 1 or more; got {self}."
            )

    def __str__(self):
        """As `parse_mesh` reads it: "data:2,expert:4"."""
        return ",".join(f"{axis}:{size}" for axis, size in self.sizes.items())

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> its size."""
        return dict(zip(self.axes, self.shape, strict=True))

    def size(self, axes: tuple[str, ...]) -> int:
        """The number of pieces of a dimension that is split over these axes."""
        return math.prod(self.shape[self.axes.index(axis)] for axis in axes)

    def piece_shape(
        self,
        shape: Sequence[int],
        axes: Sequence[tuple[str, ...]],
        dims: Iterable[str | int],
        what: str,
    ) -> tuple[int, ...]:
        """The shape of one device's piece of a tensor.

        Args:
            shape: of the whole tensor.
            axes: the axes that split each dimension, as from `assignment`.
            dims: the names of the dimensions in errors.
            what: the name of the tensor in errors.

        Raises:
            ValueError: a dimension does not divide into equal pieces.
        """
        for dim, size, group in zip(dims, shape, axes, strict=True):
            if size % self.size(group):
                raise ValueError(
                    f"Dimension {dim!r} of {what} has {size} elements, which cannot be split into "
                    f"{self.size(group)} equal pieces over {group}; change the size, the mesh or "
                    f"the rule."
                )
        return tuple(n // self.size(group) for n, group in zip(shape, axes, strict=True))


def parse_mesh(text: str) -> Mesh:
    """The mesh whose str is text: "data:2,expert:4" -> Mesh(("data", "expert"), (2, 4)).

    Raises:
        ValueError: another form, an axis named twice, or a size of 0.
    """
    if not re.fullmatch(r"[a-z_]+:[0-9]+(,[a-z_]+:[0-9]+)*", text):
        raise ValueError(f"Mesh {text!r} must read axis:size,axis:size, such as data:2,expert:4.")
    axes, sizes = zip(*(part.split(":") for part in text.split(",")), strict=True)
    return Mesh(axes, tuple(map(int, sizes)))


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


def axes_of(letter: str, rules: Rules) -> tuple[str, ...]:
    """The mesh axes that a dimension of that letter is split over."""
    rule = rules.get(letter, ())
    return (rule,) if isinstance(rule, str) else tuple(rule)


def assignment(
    dims: str, shape: tuple[int | None, ...], mesh: Mesh, rules: Rules
) -> list[tuple[str, ...]]:
    """The mesh axes that split each dimension; () for a dimension that is not split.

    Args:
        dims: one letter a dimension.
        shape: the static shape; None where unknown.
        mesh: the devices.
        rules: letter -> mesh axis or axes; letters not mentioned are not split.

    Raises:
        ValueError: dims of another rank than shape, an axis that the mesh lacks, an axis used
            twice in one tensor, or more pieces than elements.
    """
    result, used = [], set()
    for letter, size in zip(dims, shape, strict=True):
        axes = axes_of(letter, rules)
        for axis in axes:
            if axis not in mesh.axes:
                raise ValueError(
                    f"Rule {letter!r}: {rules[letter]!r} names no axis of the mesh {mesh.axes}."
                )
            if axis in used:
                raise ValueError(
                    f"Axis {axis!r} would split two dimensions of {dims!r}; change a rule."
                )
            used.add(axis)
        if size is not None and mesh.size(axes) > size:
            count = " (model.moe.training.groups)" if letter in "Gg" else ""
            raise ValueError(
                f"Dimension {letter!r} of {dims!r} has {size} elements, too few to split into "
                f"{mesh.size(axes)} pieces over {axes}; change the size{count}, the mesh or the "
                f"rule."
            )
        result.append(axes)
    return result


def annotate(tensor: tf.Tensor, dims: str, at_rest: bool = False) -> tf.Tensor:
    """The tensor with an XLA annotation of its sharding; unchanged outside of `use_mesh`.

    Args:
        tensor: any rank.
        dims: one letter a dimension, from the alphabet of the calling module.
        at_rest: whether to use the rules for weights and slots between steps.

    Raises:
        ValueError: as `assignment`.
    """
    if (here := _active.get()) is None:
        return tensor
    mesh, *rules = here
    return tile(tensor, assignment(dims, tuple(tensor.shape), mesh, rules[at_rest]), mesh)


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
    """The number of pieces that a dimension of that letter has here; 1 outside of `use_mesh`.

    Raises:
        ValueError: the letter's rule names an axis that the mesh lacks.
    """
    if (here := active()) is None:
        return 1
    mesh, rules = here
    (axes,) = assignment(letter, (None,), mesh, rules)
    return mesh.size(axes)


def tile(tensor: tf.Tensor, axes: list[tuple[str, ...]], mesh: Mesh) -> tf.Tensor:
    """The tensor, annotated as split over these axes of the mesh, as from `assignment`."""
    return attach(tensor, tile_sharding(axes, mesh))


def attach(tensor: tf.Tensor, sharding: xla_sharding.Sharding) -> tf.Tensor:
    """The tensor with this annotation, which its gradient gets too.

    Raises:
        ValueError: outside of a graph, where no compiler would read it.
    """
    if tf.executing_eagerly():
        raise ValueError("Annotations on a mesh have an effect only in a tf.function; use one.")
    return sharding.apply_to_tensor(tensor, use_sharding_op=True)


def tile_sharding(axes: list[tuple[str, ...]], mesh: Mesh) -> xla_sharding.Sharding:
    """XLA's description of this sharding."""
    split = [axis for group in axes for axis in group]
    if not split:
        return xla_sharding.Sharding.replicate()
    whole = [axis for axis in mesh.axes if axis not in split]
    order = [mesh.axes.index(axis) for axis in split + whole]
    pieces = [mesh.size(group) for group in axes]
    devices = np.arange(math.prod(mesh.shape)).reshape(mesh.shape).transpose(order)
    if not whole:
        return xla_sharding.Sharding.tile(devices.reshape(pieces))
    copies = mesh.size(tuple(whole))
    return xla_sharding.Sharding.partial_tile(devices.reshape([*pieces, copies]))
