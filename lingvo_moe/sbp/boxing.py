"""Boxing: changes the type of a tensor by collectives, and counts their bytes.

Yuan et al. 2021 (arXiv 2110.15032), table 2. On one axis of d devices, for a tensor of n bytes, the
bytes that a device receives:

    S(i) → B      all-gather      (d - 1) / d n
    S(i) → S(j)   all-to-all      (d - 1) / d² n
    P → B         all-reduce      2 (d - 1) / d n
    P → S(i)      reduce-scatter  (d - 1) / d n
    B → S(i), B → P, S(i) → P     none: slice, zeros on all devices but one, pad with zeros

On a mesh of several axes boxing takes a sequence of steps, and `plan` finds the cheapest one. A
step may change several axes together if they have the same source and the same target.
"""

import dataclasses
import fractions
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

from lingvo_moe.sbp.types import B, Mesh, NdSbp, P, Sbp, Split, cuts, piece_shape


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective or one local operation."""

    axes: tuple[str, ...]  # along which devices communicate, in the mesh's order
    source: NdSbp  # on all axes
    target: NdSbp
    kind: str  # "all-gather", "all-to-all", "all-reduce", "reduce-scatter"; "" for a local one
    # as `hlo.Collective.bytes`: a device's piece for an all-to-all, else a group's whole array
    bytes: int
    received: fractions.Fraction  # the least number of bytes that each device receives

    def __str__(self):
        how = (
            f"{self.kind} over {','.join(self.axes)}, {self.bytes} bytes" if self.kind else "local"
        )
        return f"{self.source} → {self.target}: {how}"


def collective(source: Sbp, target: Sbp) -> str:
    """The collective that changes source to target on one axis; "" for a local operation."""
    match source, target:
        case Split(), Split() if source != target:
            return "all-to-all"
        case Split(), target if target == B:
            return "all-gather"
        case source, Split() if source == P:
            return "reduce-scatter"
        case _ if (source, target) == (P, B):
            return "all-reduce"
    return ""


def plan(
    source: NdSbp, target: NdSbp, shape: Sequence[int], element_bytes: int, mesh: Mesh
) -> tuple[Step, ...]:
    """The steps with the fewest bytes received by a device, and among these the fewest steps.

    Dijkstra's algorithm over all types of a tensor of this whole shape. Raises ValueError: source
    or target do not fit the mesh or cut the shape into unequal pieces.
    """
    for sbp in (source, target):
        piece_shape(shape, sbp, mesh)
    order, done, nothing = itertools.count(), set(), fractions.Fraction(0)
    queue: list[tuple] = [(nothing, 0, next(order), source, ())]
    while queue:
        received, length, _, here, taken = heapq.heappop(queue)
        if here == target:
            return taken
        if here in done:
            continue
        done.add(here)
        for step in steps(here, shape, element_bytes, mesh):
            total = received + step.received, length + 1
            heapq.heappush(queue, (*total, next(order), step.target, (*taken, step)))
    raise AssertionError("every tensor can be copied to all devices, and cut again")


def direct(
    source: NdSbp, target: NdSbp, shape: Sequence[int], element_bytes: int, mesh: Mesh
) -> tuple[Step, ...]:
    """The steps of XLA, which takes no detours: axes that change alike do so together, those that
    split the last dimension first. Pieces may be unequal; bytes are then of a mean piece."""
    changes = list(zip(source, target, strict=True))
    here, taken = source, []
    last_first = sorted(dict.fromkeys(changes), key=lambda change: -getattr(change[0], "dim", -1))
    for one, other in last_first:
        if one != other:
            axes = tuple(axis for axis, change in enumerate(changes) if change == (one, other))
            there = NdSbp(other if axis in axes else old for axis, old in enumerate(here))
            taken.append(_step(axes, here, there, shape, element_bytes, mesh))
            here = there
    return tuple(taken)


def steps(here: NdSbp, shape: Sequence[int], element_bytes: int, mesh: Mesh) -> Iterator[Step]:
    """All single steps from `here` to types that split the shape into equal pieces."""
    numbers = range(len(mesh.axes))
    for axes in itertools.chain.from_iterable(
        itertools.combinations(numbers, n) for n in range(1, len(numbers) + 1)
    ):
        source = here[axes[0]]
        if any(here[axis] != source for axis in axes) or not _innermost(source, axes, here):
            continue
        targets: list[Sbp] = [*map(Split, range(len(shape))), B, P]
        for one in targets:
            there = NdSbp(one if axis in axes else here[axis] for axis in numbers)
            if one != source and _innermost(one, axes, there) and is_even(shape, there, mesh):
                yield _step(axes, here, there, shape, element_bytes, mesh)


def _innermost(one: Sbp, axes: tuple[int, ...], sbp: NdSbp) -> bool:
    """Whether no inner axis splits the same dimension further, so that pieces are contiguous."""
    if not isinstance(one, Split):
        return True
    return not any(
        axis > axes[0] for axis, other in enumerate(sbp) if other == one and axis not in axes
    )


def is_even(shape: Sequence[int], sbp: NdSbp, mesh: Mesh) -> bool:
    """Whether a type cuts every dimension into equal pieces."""
    axes = cuts(len(shape), sbp, mesh)
    return not any(n % mesh.size(group) for n, group in zip(shape, axes, strict=True))


def _step(axes, source, target, shape, element_bytes, mesh):
    devices = math.prod(mesh.shape[axis] for axis in axes)
    together = NdSbp(B if axis in axes else one for axis, one in enumerate(source))
    pieces = mesh.size(tuple(itertools.chain.from_iterable(cuts(len(shape), together, mesh))))
    size = element_bytes * math.prod(shape) // pieces
    kind = collective(source[axes[0]], target[axes[0]])
    if kind == "all-to-all":
        size //= devices
    # An all-reduce is a reduce-scatter, then an all-gather.
    rounds = bool(kind) + (kind == "all-reduce")
    return Step(
        axes=tuple(mesh.axes[axis] for axis in axes),
        source=source,
        target=target,
        kind=kind,
        bytes=size if kind else 0,
        received=fractions.Fraction(rounds * (devices - 1) * size, devices),
    )
