"""The types of the algebra: split, broadcast, partial.

Yuan et al. 2021 (OneFlow, arXiv 2110.15032), section 3.1. On one axis of a mesh with d devices a
tensor T is S(i), split along dimension i into d pieces; B, a copy on each device; or P, a summand
of T's shape on each device, whose sum is T. On a mesh of several axes there is one type for each
axis, outermost first: "S(0),B". S and B correspond to the rules of annotations.py, which give the
axes of each dimension; P has no counterpart there.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

from lingvo_moe.sbp.annotations import Mesh, Rules, assignment


@dataclasses.dataclass(frozen=True)
class Split:
    """Split along dimension dim: one piece a device, in the order of the devices."""

    dim: int

    def __str__(self):
        return f"S({self.dim})"


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """A full copy on every device."""

    def __str__(self):
        return "B"


@dataclasses.dataclass(frozen=True)
class Partial:
    """A summand of full shape on every device."""

    def __str__(self):
        return "P"


Sbp = Split | Broadcast | Partial
S = Split
B = Broadcast()
P = Partial()


class NdSbp(tuple[Sbp, ...]):
    """One Sbp for each axis of a mesh, outermost first: NdSbp([S(0), B])."""

    __slots__ = ()

    def __str__(self):
        return ",".join(map(str, self))

    def __repr__(self):
        return f"NdSbp({self})"


def parse(text: str) -> NdSbp:
    """The value whose str is text: "S(0),B". The empty text is that of a mesh without axes.

    Raises:
        ValueError: anything else.
    """
    return NdSbp(_parse_one(part.strip(), text) for part in text.split(",") if text.strip())


def _parse_one(part: str, text: str) -> Sbp:
    match = re.fullmatch(r"B|P|S\((\d+)\)", part)
    if not match:
        raise ValueError(
            f"Unknown placement {part!r} in {text!r}; write S(i), B or P for each axis of the "
            f"mesh, as in 'S(0),B'."
        )
    return B if part == "B" else P if part == "P" else Split(int(match[1]))


def every(rank: int, axes: int) -> Iterable[NdSbp]:
    """All types of a tensor of this rank on a mesh with this number of axes: (rank + 2) ** axes."""
    one: list[Sbp] = [*map(Split, range(rank)), B, P]
    return map(NdSbp, itertools.product(one, repeat=axes))


def from_rules(dims: str, shape: tuple[int | None, ...], mesh: Mesh, rules: Rules) -> NdSbp:
    """The type that `annotate` gives to a tensor with these letters.

    Args:
        dims: one letter a dimension.
        shape: the static shape; None where unknown.
        mesh: the devices.
        rules: letter -> mesh axis or axes.

    Raises:
        ValueError: as `assignment`, or a dimension is split over axes in another order than the
            mesh's.
    """
    result: dict[str, Sbp] = dict.fromkeys(mesh.axes, B)
    for dim, group in enumerate(assignment(dims, shape, mesh, rules)):
        if list(group) != sorted(group, key=mesh.axes.index):
            raise ValueError(
                f"Dimension {dim} is split over {group}, inner before outer; name the axes in the "
                f"order of the mesh, {mesh.axes}."
            )
        result |= dict.fromkeys(group, Split(dim))
    return NdSbp(result.values())


def piece_shape(shape: Sequence[int], sbp: NdSbp, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the piece of one device.

    Raises:
        ValueError: a dimension does not divide into equal pieces.
    """
    named = list(zip(mesh.axes, sbp, strict=True))
    axes = [tuple(a for a, one in named if one == Split(dim)) for dim in range(len(shape))]
    return mesh.piece_shape(shape, axes, range(len(shape)), f"{tuple(shape)} as {sbp}")
