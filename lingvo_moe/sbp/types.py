"""The types of the algebra: split, broadcast, partial; meshes, and the types that rules give.

Yuan et al. 2021 (OneFlow, arXiv 2110.15032), section 3.1. On one axis of a mesh with d devices a
tensor T is S(i), split along dimension i into d pieces; B, a copy on each device; or P, a summand
of T's shape on each device, whose sum is T. On a mesh of several axes there is one type for each
axis, outermost first: "S(0),B". Rules give S and B to a tensor with letters; P has no letter.
"""

import dataclasses
import enum
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

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


def parse_mesh(text: str) -> Mesh:
    """The mesh whose str is text: "data:2,expert:4" -> Mesh(("data", "expert"), (2, 4)).
    Raises ValueError: another form, an axis named twice, or a size of 0."""
    if not re.fullmatch(r"[a-z_]+:[0-9]+(,[a-z_]+:[0-9]+)*", text):
        raise ValueError(f"Mesh {text!r} must read axis:size,axis:size, such as data:2,expert:4.")
    axes, sizes = zip(*(part.split(":") for part in text.split(",")), strict=True)
    return Mesh(axes, tuple(map(int, sizes)))


def axes_of(letter: str, rules: Rules) -> tuple[str, ...]:
    """The mesh axes that a dimension of that letter is split over."""
    rule = rules.get(letter, ())
    return (rule,) if isinstance(rule, str) else tuple(rule)


@dataclasses.dataclass(frozen=True)
class Split:
    """Split along dimension dim: one piece a device, in the order of the devices."""

    dim: int

    def __str__(self):
        return f"S({self.dim})"


class Whole(enum.Enum):
    """Of full shape on every device: a copy of the tensor, or a summand."""

    BROADCAST = "B"
    PARTIAL = "P"

    def __str__(self):
        return self.value


Sbp = Split | Whole
S, B, P = Split, Whole.BROADCAST, Whole.PARTIAL


class NdSbp(tuple[Sbp, ...]):
    """One Sbp for each axis of a mesh, outermost first: NdSbp([S(0), B])."""

    __slots__ = ()

    def __str__(self):
        return ",".join(map(str, self))

    def __repr__(self):
        return f"NdSbp({self})"


def parse(text: str) -> NdSbp:
    """The value whose str is text: "S(0),B". The empty text is that of a mesh without axes.
    Raises ValueError: anything else."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for part in parts:
        if not re.fullmatch(r"B|P|S\(\d+\)", part):
            raise ValueError(
                f"Unknown placement {part!r} in {text!r}; write S(i), B or P for each axis of the "
                f"mesh, as in 'S(0),B'."
            )
    return NdSbp(Whole(one) if one in "BP" else Split(int(one[2:-1])) for one in parts)


def every(rank: int, axes: int) -> Iterable[NdSbp]:
    """All types of a tensor of this rank on a mesh with this number of axes: (rank + 2) ** axes."""
    one: list[Sbp] = [*map(Split, range(rank)), B, P]
    return map(NdSbp, itertools.product(one, repeat=axes))


def type_of(dims: str, shape: Sequence[int | None], mesh: Mesh, rules: Rules) -> NdSbp:
    """The type of a tensor with these letters.

    Args:
        dims: one letter a dimension.
        shape: the static shape; None where unknown.
        mesh: the devices.
        rules: letter -> mesh axis or axes; letters not mentioned are not split.

    Raises:
        ValueError: dims of another rank than shape, an axis that the mesh lacks, an axis used
            twice in one tensor, axes in another order than the mesh's, or more pieces than
            elements.
    """
    result: dict[str, Sbp] = dict.fromkeys(mesh.axes, B)
    for dim, (letter, size) in enumerate(zip(dims, shape, strict=True)):
        axes = axes_of(letter, rules)
        for axis in axes:
            if axis not in result:
                raise ValueError(
                    f"Rule {letter!r}: {rules[letter]!r} names no axis of the mesh {mesh.axes}."
                )
            if result[axis] != B:
                raise ValueError(
                    f"Axis {axis!r} would split two dimensions of {dims!r}; change a rule."
                )
            result[axis] = Split(dim)
        if sorted(axes, key=mesh.axes.index) != list(axes):
            raise ValueError(
                f"Rule {letter!r} splits over {axes}, inner before outer; name the axes of the "
                f"mesh {mesh} in this order."
            )
        if size is not None and mesh.size(axes) > size:
            count = " (model.moe.training.groups)" if letter in "Gg" else ""
            raise ValueError(
                f"Dimension {letter!r} of {dims!r} has {size} elements, too few to split into "
                f"{mesh.size(axes)} pieces over {axes}; change the size{count}, the mesh or the "
                f"rule."
            )
    return NdSbp(result.values())


def axes_with(one: Sbp, sbp: NdSbp, mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which a tensor has this type."""
    return tuple(axis for axis, own in zip(mesh.axes, sbp, strict=True) if own == one)


def cuts(rank: int, sbp: NdSbp, mesh: Mesh) -> list[tuple[str, ...]]:
    """The axes that split each dimension."""
    return [axes_with(Split(dim), sbp, mesh) for dim in range(rank)]


def piece_shape(
    shape: Sequence[int], sbp: NdSbp, mesh: Mesh, dims: Sequence | None = None, what: str = ""
) -> tuple[int, ...]:
    """The shape of the piece of one device.

    Args:
        shape: of the whole tensor.
        sbp: its type.
        mesh: the devices.
        dims: the names of the dimensions in errors; None for their numbers.
        what: the name of the tensor in errors.

    Raises:
        ValueError: a dimension does not divide into equal pieces.
    """
    axes = cuts(len(shape), sbp, mesh)
    for dim, size, group in zip(dims or range(len(shape)), shape, axes, strict=True):
        if size % mesh.size(group):
            raise ValueError(
                f"Dimension {dim!r} of {what or f'{tuple(shape)} as {sbp}'} has {size} elements, "
                f"which cannot be split into {mesh.size(group)} equal pieces over {group}; change "
                f"the size, the mesh or the rule."
            )
    return tuple(n // mesh.size(group) for n, group in zip(shape, axes, strict=True))
