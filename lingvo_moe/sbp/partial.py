"""Sums that are made late: values that stay partial while they flow through linear operators.

After a contraction over a cut dimension every device holds a summand. XLA adds them up at once; yet
sums are linear, so they can wait, until there are fewer of them or until they are smaller (Yuan et
al. 2021, arXiv 2110.15032, section 3.3). XLA needs to know nothing of this: a partial tensor has
its summands along a leading dimension of their own, cut over the axis of the mesh, so that each
device holds one and whatever is done to them is done locally.

    y = einsum("BH,HM->BM", place(x, "BH"), place(w, "HM"))   # H is cut: y is P
    z = einsum("BM,MN->BN", y, place(v, "MN"))                # z too; nothing was sent so far
    z = reduce_partial(z)                                     # one AllReduce

The mesh and the rules are those of `use_mesh`; outside of it nothing is ever partial and all of
this is ordinary arithmetic.
"""

import dataclasses
import itertools
import math
import string
from collections.abc import Sequence

import tensorflow as tf

from lingvo_moe.sbp import boxing, signatures, types
from lingvo_moe.sbp.types import B, NdSbp, P, Sbp
from lingvo_moe.sharding.annotations import Mesh, active, tile

_NO_MESH = Mesh((), ())


@dataclasses.dataclass(frozen=True)
class Placed:
    """A tensor and how the mesh in force holds it.

    Attributes:
        value: [*one dimension for each axis in `explicit`, *the tensor's own dimensions]; those in
            front have the axis's size, and device k of the axis holds summand k.
        sbp: one S(i), B or P an axis.
    """

    value: tf.Tensor
    sbp: NdSbp

    @property
    def explicit(self) -> tuple[str, ...]:
        """The axes along which it is P, in the mesh's order."""
        return _partial_axes(self.sbp)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return tuple(self.value.shape[len(self.explicit) :])

    def on(self, axis: str) -> Sbp:
        """How it is held along one axis of the mesh in force."""
        return self.sbp[_mesh().axes.index(axis)]

    @property
    def tensor(self) -> tf.Tensor:
        """The tensor itself, for whatever is not linear.

        Raises:
            ValueError: it is partial.
        """
        if self.explicit:
            raise ValueError(
                f"A tensor that is {self.sbp} has summands on the axes {self.explicit} and goes "
                f"through linear operators only; use reduce_partial first."
            )
        return self.value


def place(tensor: tf.Tensor, dims: str) -> Placed:
    """The tensor, held by the rules in force, as `annotate` would have it.

    Args:
        tensor: of static shape.
        dims: one letter a dimension.

    Raises:
        ValueError: as `from_rules`.
    """
    rules = active()[1] if active() else {}
    placed = types.from_rules(dims, tuple(tensor.shape), _mesh(), rules)
    return _told(Placed(tensor, placed))


def einsum(equation: str, *operands: Placed) -> Placed:
    """A sum of products, partial where a letter that is summed over is cut, or an operand partial.

    Every device computes on what it holds; nothing is sent.

    Args:
        equation: a letter for each dimension of the tensors themselves.
        operands: held as one of the signatures of the equation has it.

    Raises:
        ValueError: devices could not work on their pieces alone, or a cut dimension does not fall
            into equal pieces.
    """
    mesh, operator = _mesh(), signatures.einsum(equation)
    held = signatures.infer(operator, [operand.sbp for operand in operands], mesh)
    shown = _shown(operator.terms, operands, held, mesh)
    letter_of = dict(zip(mesh.axes, _free_letters(equation), strict=False))
    terms, values = [], []
    for term, operand in zip(operator.terms, operands, strict=True):
        cut = _cut_axes(operand.sbp, len(term), shown, mesh)
        terms.append(_letters(operand.explicit, term, cut, letter_of))
        values.append(_expanded(operand, cut, mesh))
    cut = _cut_axes(held, len(operator.result), shown, mesh)
    result = _letters(_partial_axes(held), operator.result, cut, letter_of)
    value = tf.einsum(f"{','.join(terms)}->{result}", *values)
    return _merged(value, held, cut, mesh)


def add(*operands: Placed) -> Placed:
    """The sum of tensors of one shape; if some are partial, it is, and no device sends anything.

    Raises:
        ValueError: other shapes, or held differently other than by P.
    """
    shapes = {operand.shape for operand in operands}
    if len(shapes) > 1:
        raise ValueError(f"add needs tensors of one shape, got {sorted(shapes)}.")
    columns = zip(*(operand.sbp for operand in operands), strict=True)
    target = NdSbp(P if P in column else column[0] for column in columns)
    for operand in operands:
        if any(to not in (P, one) for to, one in zip(target, operand.sbp, strict=True)):
            held = "; ".join(str(o.sbp) for o in operands)
            raise ValueError(f"add needs tensors held alike but for P, got {held}. Box one first.")
    boxed = [box(operand, target).value for operand in operands]
    return Placed(tf.add_n(boxed), target)


def scale(operand: Placed, factor: tf.Tensor | float) -> Placed:
    """The tensor times a number; that times another tensor is an `einsum`."""
    return dataclasses.replace(operand, value=operand.value * factor)


def transpose(operand: Placed, permutation: Sequence[int]) -> Placed:
    """Dimension i of the result is dimension permutation[i] of the operand."""
    held = signatures.infer(signatures.transpose(permutation), [operand.sbp], _mesh())
    front = len(operand.explicit)
    order = [*range(front), *(front + i for i in permutation)]
    return _told(Placed(tf.transpose(operand.value, order), held))


def reshape(operand: Placed, shape: Sequence[int]) -> Placed:
    """The same elements in another shape.

    Raises:
        ValueError: a cut dimension would not lie together any more.
    """
    reshaping = signatures.Reshape(operand.shape, tuple(shape))
    held = signatures.infer(reshaping, [operand.sbp], _mesh())
    front = operand.value.shape[: len(operand.explicit)]
    return _told(Placed(tf.reshape(operand.value, [*front, *shape]), held))


def reduce_partial(operand: Placed, to: Sbp = B) -> tf.Tensor:
    """Makes the sums that are still to be made.

    Args:
        operand: partial or not.
        to: what the axes that are P become: B by an AllReduce, S(i) by half of one.

    Returns:
        The tensor itself.

    Raises:
        ValueError: as `box`.
    """
    return box(operand, NdSbp(to if one == P else one for one in operand.sbp)).tensor


def box(operand: Placed, target: NdSbp) -> Placed:
    """The same tensor, held otherwise, by the steps of `boxing.plan`.

    P to S(i) is done as an AllToAll of summands that each device then adds up: a device receives as
    many bytes as from a ReduceScatter, which not all of XLA's back ends make.

    Raises:
        ValueError: a target that the mesh or the shape do not allow.
    """
    mesh = _mesh()
    if operand.sbp == target:
        return operand
    for step in boxing.plan(operand.sbp, target, operand.shape, operand.value.dtype.size, mesh):
        operand = _step(operand, step, mesh)
    return operand


def _step(operand: Placed, step: boxing.Step, mesh: Mesh) -> Placed:
    first = mesh.axes.index(step.axes[0])
    if step.source[first] == P:
        return _added_up(operand, step, mesh)
    if step.target[first] == P:
        for axis in reversed(step.axes):
            operand = _summands(operand, axis, mesh)
        return operand
    return _told(dataclasses.replace(operand, sbp=step.target))


def _added_up(operand: Placed, step: boxing.Step, mesh: Mesh) -> Placed:
    explicit = tuple(axis for axis in operand.explicit if axis not in step.axes)
    places = [operand.explicit.index(axis) for axis in step.axes]
    others = [i for i in range(operand.value.shape.rank) if i not in places]
    # One dimension of summands: XLA reduces several one after the other, which takes more bytes.
    value = tf.transpose(operand.value, [*places, *others])
    value = tf.reshape(value, [-1, *value.shape[len(places) :]])
    before = [step.axes, *((axis,) for axis in explicit)]
    value = _tiled(value, before + types.split_axes(step.source, len(operand.shape), mesh), mesh)
    if step.kind == "reduce-scatter":
        after = [(), *((axis,) for axis in explicit)]
        value = _tiled(value, after + types.split_axes(step.target, len(operand.shape), mesh), mesh)
    return _told(Placed(tf.reduce_sum(value, 0), step.target))


def _summands(operand: Placed, axis: str, mesh: Mesh) -> Placed:
    """B or S(i) to P along one axis: one device keeps its copy, or each pads its piece by zeros."""
    held = NdSbp(P if a == axis else operand.on(a) for a in mesh.axes)
    explicit = tuple(a for a in mesh.axes if a in operand.explicit or a == axis)
    make = _kept if operand.on(axis) == B else _padded
    value = make(operand, axis, explicit.index(axis), mesh)
    shape = [mesh.size((a,)) for a in explicit] + list(operand.shape)
    return _told(Placed(tf.reshape(value, shape), held))


def _kept(operand: Placed, axis: str, position: int, mesh: Mesh) -> tf.Tensor:
    """The value with a dimension of the axis at position, where the first device keeps it."""
    value = tf.expand_dims(operand.value, position)
    first = tf.range(mesh.size((axis,))) == 0
    return _where(tf.reshape(first, [-1] + [1] * (value.shape.rank - position - 1)), value)


def _padded(operand: Placed, axis: str, position: int, mesh: Mesh) -> tf.Tensor:
    """The value with a dimension of the axis at position, each device's piece in its slot."""
    number, size = operand.on(axis).dim, mesh.size((axis,))
    # [..., outer axes that cut the dimension, this axis, a piece, ...]; this one moves to position.
    group = types.split_axes(operand.sbp, len(operand.shape), mesh)[number]
    cut = [group if i == number else () for i in range(len(operand.shape))]
    value = _expanded(operand, cut, mesh)
    slot = len(operand.explicit) + number + len(group) - 1
    order = [i for i in range(value.shape.rank) if i != slot]
    value = tf.transpose(value, [*order[:position], slot, *order[position:]])
    value = tf.expand_dims(value, slot + 1)
    own = [1] * value.shape.rank
    own[position] = own[slot + 1] = size
    return _where(tf.reshape(tf.eye(size, dtype=tf.bool), own), value)


def _where(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The value or zeros; not a product, which makes NaN of infinity."""
    return tf.where(condition, value, tf.zeros([], value.dtype))


# ---- dimensions that show what each device holds ----


def _shown(terms, operands, held, mesh) -> set[str]:
    """The axes along which the computation is written out device by device.

    Those of summands; and since a dimension is written out over all axes that cut it or
    none, the others that cut the same letters.
    """
    shown = {axis for operand in operands for axis in operand.explicit}
    shown |= {axis for axis, one in zip(mesh.axes, held, strict=True) if one == P}
    groups = [
        set(group)
        for term, operand in zip(terms, operands, strict=True)
        for group in types.split_axes(operand.sbp, len(term), mesh)
    ]
    while grown := [g for g in groups if g & shown and not g <= shown]:
        shown = shown.union(*grown)
    return shown


def _cut_axes(held: NdSbp, rank: int, shown: set[str], mesh: Mesh) -> list[tuple[str, ...]]:
    """For each dimension the axes that cut it and are written out."""
    groups = types.split_axes(held, rank, mesh)
    return [tuple(axis for axis in group if axis in shown) for group in groups]


def _expanded(operand: Placed, cut: list[tuple[str, ...]], mesh: Mesh) -> tf.Tensor:
    """The value with each dimension n that is cut over axes of sizes d, e as [d, e, n / (d e)]."""
    if not any(cut):
        return operand.value
    types.piece_shape(operand.shape, operand.sbp, mesh)  # equal pieces, or an error that says so
    shape = list(operand.value.shape[: len(operand.explicit)])
    for size, group in zip(operand.shape, cut, strict=True):
        shape += [*(mesh.size((axis,)) for axis in group), size // mesh.size(group)]
    tiling = [(axis,) for axis in operand.explicit] + _finer(operand.sbp, cut, mesh)
    return _tiled(tf.reshape(operand.value, shape), tiling, mesh)


def _merged(value, held, cut, mesh) -> Placed:
    """The inverse of `_expanded`."""
    explicit = _partial_axes(held)
    value = _tiled(value, [(axis,) for axis in explicit] + _finer(held, cut, mesh), mesh)
    sizes, shape = iter(value.shape), []
    for number in [1] * len(explicit) + [len(group) + 1 for group in cut]:
        shape.append(math.prod(itertools.islice(sizes, number)))
    return _told(Placed(tf.reshape(value, shape), held))


def _finer(held: NdSbp, cut: list[tuple[str, ...]], mesh: Mesh) -> list[tuple[str, ...]]:
    """The axes that cut each dimension of an expanded value."""
    tiling = []
    for group, written in zip(types.split_axes(held, len(cut), mesh), cut, strict=True):
        tiling += [*((axis,) for axis in written), tuple(a for a in group if a not in written)]
    return tiling


def _letters(explicit, term, cut, letter_of) -> str:
    """The letters of an expanded value: `term`'s, with those of axes in front of what they cut."""
    front = "".join(letter_of[axis] for axis in explicit)
    pairs = zip(term, cut, strict=True)
    return front + "".join("".join(letter_of[a] for a in axes) + letter for letter, axes in pairs)


def _free_letters(equation: str) -> list[str]:
    return [letter for letter in string.ascii_letters if letter not in equation]


def _partial_axes(held: NdSbp) -> tuple[str, ...]:
    return tuple(axis for axis, one in zip(_mesh().axes, held, strict=True) if one == P)


def _mesh() -> Mesh:
    return active()[0] if active() else _NO_MESH


def _told(placed: Placed) -> Placed:
    """The same, with XLA told of it."""
    axes = types.split_axes(placed.sbp, len(placed.shape), _mesh())
    tiling = [(axis,) for axis in placed.explicit] + axes
    return dataclasses.replace(placed, value=_tiled(placed.value, tiling, _mesh()))


def _tiled(value: tf.Tensor, axes: list[tuple[str, ...]], mesh: Mesh) -> tf.Tensor:
    return tile(value, axes, mesh) if mesh.axes else value
