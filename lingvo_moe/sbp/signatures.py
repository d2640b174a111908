"""Which ways of holding operands and result let every device work on its own pieces alone.

Yuan et al. 2021 (arXiv 2110.15032), section 3.2: a signature says for one axis of a mesh how each
operand is held and what the result then is. They follow from an operator's letters:

- a letter that the result has: operands with that letter are cut there, the others are copied, and
  the result is cut there;
- a letter that is summed over: operands with it are cut there, and the result is P;
- sums pass through what is linear: one operand P and the others copied gives P;
- copies give copies.

On a mesh of several axes one signature holds for each, the inner ones for the pieces that the outer
ones leave.
"""

import abc
import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingvo_moe.sbp.types import B, NdSbp, P, Sbp, Split
from lingvo_moe.sharding.annotations import Mesh


class Signature(NamedTuple):
    """For one axis of a mesh."""

    operands: tuple[Sbp, ...]
    result: Sbp

    def __str__(self):
        return f"{', '.join(map(str, self.operands))} → {self.result}"


class NdSignature(NamedTuple):
    """For all axes of a mesh."""

    operands: tuple[NdSbp, ...]
    result: NdSbp


class Operator(abc.ABC):
    """What is computed, as far as it matters for where things live."""

    num_operands: int

    @abc.abstractmethod
    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """All that are legal on an axis of so many devices; each has other operands."""

    def piece(self, signature: Signature, devices: int) -> "Operator":
        """What each device computes under that signature."""
        return self


class Linear(enum.Enum):
    """Of which operands an operator is a linear function."""

    EACH = "of each while the others are fixed, like a product"
    TOGETHER = "of all together, like a sum"
    NOT = "of none"


@dataclasses.dataclass(frozen=True)
class Lettered(Operator):
    """An operator described by an equation; make it by one of the functions below.

    Attributes:
        equation: as an einsum's; a letter is a dimension.
        linear: what becomes of P.
        whole: letters along which a device needs everything.
    """

    equation: str
    linear: Linear
    whole: str = ""

    def __post_init__(self):
        if not set(self.result) <= set("".join(self.terms)):
            raise ValueError(f"{self.equation!r}: the result has a letter that no operand has.")
        if len(set(self.result)) != len(self.result):
            raise ValueError(f"{self.equation!r}: the result has a letter twice.")

    @property
    def terms(self) -> list[str]:
        """The letters of each operand."""
        return _parse(self.equation)[0]

    @property
    def result(self) -> str:
        """The letters of the result."""
        return _parse(self.equation)[1]

    @property
    def num_operands(self) -> int:
        """One a term."""
        return len(self.terms)

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """See Operator; they are the same for any number of devices."""
        letters = dict.fromkeys("".join([self.result, *self.terms]))
        cuts = [self._cut(letter) for letter in letters if self._may_cut(letter)]
        copies = Signature((B,) * self.num_operands, B)
        return (*cuts, *self._sums(), copies)

    def _may_cut(self, letter):
        # A diagonal's two dimensions would have to be cut together, by one axis.
        return letter not in self.whole and all(term.count(letter) < 2 for term in self.terms)

    def _cut(self, letter):
        operands = tuple(Split(t.index(letter)) if letter in t else B for t in self.terms)
        return Signature(operands, Split(self.result.index(letter)) if letter in self.result else P)

    def _sums(self):
        match self.linear:
            case Linear.EACH:
                for i in range(self.num_operands):
                    yield Signature(tuple(P if i == j else B for j in range(self.num_operands)), P)
            case Linear.TOGETHER:
                yield Signature((P,) * self.num_operands, P)


@dataclasses.dataclass(frozen=True)
class Reshape(Operator):
    """A row-major reshape, which cuts what lies together.

    S(i) becomes S(j) if as many elements lie before dimension i as before j, in other words if both
    cut the same range of the elements: the first of merged dimensions, the first of parts.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    num_operands = 1

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """See Operator."""
        cuts = (
            Signature((Split(i),), Split(j))
            for i, before, size in _strides(self.source)
            for j, as_before, other in _strides(self.target)
            if before == as_before and size % devices == other % devices == 0 and devices > 1
        )
        return (*cuts, Signature((P,), P), Signature((B,), B))

    def piece(self, signature: Signature, devices: int) -> "Reshape":
        """See Operator."""
        (source,) = signature.operands
        if not isinstance(source, Split):
            return self
        return Reshape(
            _divided(self.source, source.dim, devices),
            _divided(self.target, signature.result.dim, devices),
        )


@dataclasses.dataclass(frozen=True)
class Gather(Operator):
    """Rows of a table by number: equation "VM,BL->BLM", looked up over "V".

    It is the product of the table and a one-hot tensor that each device makes for the rows it
    holds; where the table is cut over them, devices give zeros for rows of others and the result
    is P.
    """

    equation: str
    over: str
    num_operands = 2

    def __post_init__(self):
        table, indices = _parse(self.equation)[0]
        if self.over not in table or self.over in indices:
            raise ValueError(
                f"{self.equation!r}: over={self.over!r} must be a letter of the table alone."
            )

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """See Operator."""
        (table, indices), result = _parse(self.equation)
        product = einsum(f"{table},{indices}{self.over}->{result}").signatures(devices)
        made_locally = Split(len(indices))
        return tuple(
            Signature((rows, B if one_hot == made_locally else one_hot), out)
            for (rows, one_hot), out in product
            if one_hot != P  # numbers of rows are no linear matter
        )


def einsum(equation: str) -> Lettered:
    """Sums of products, transposes, sums over dimensions; one operand may be a constant's multiple.

    Raises:
        ValueError: an equation without "->", or with a letter in the result that no operand has.
    """
    return Lettered(equation, Linear.EACH)


def add(equation: str) -> Lettered:
    """A sum of tensors with broadcasting: "BM,M->BM".

    Raises:
        ValueError: as `einsum`, or a letter that the result lacks.
    """
    return _elementwise(equation, Linear.TOGETHER)


def elementwise(equation: str) -> Lettered:
    """Any other function of elements, as relu or max(x, y) are; products are `einsum`s.

    Raises:
        ValueError: as `add`.
    """
    return _elementwise(equation, Linear.NOT)


def softmax(dims: str, over: str) -> Lettered:
    """Or whatever else mixes elements along some dimensions, not linearly: norms, sorting, top k.

    Args:
        dims: a letter a dimension.
        over: those along which it mixes.
    """
    return Lettered(f"{dims}->{dims}", Linear.NOT, whole=over)


def mean(equation: str) -> Lettered:
    """The mean over the letters that the result lacks; a sum is an `einsum`.

    Linear, but means of pieces do not add up to the mean: those letters stay whole.

    Raises:
        ValueError: as `einsum`.
    """
    return Lettered(equation, Linear.EACH, whole=_summed(equation))


def extremum(equation: str) -> Lettered:
    """The maximum, minimum or product over the letters that the result lacks.

    Raises:
        ValueError: as `einsum`.
    """
    return Lettered(equation, Linear.NOT, whole=_summed(equation))


def transpose(permutation: Sequence[int]) -> Lettered:
    """Dimension i of the result is dimension permutation[i] of the operand."""
    letters = [chr(ord("a") + i) for i in range(len(permutation))]
    return einsum(f"{''.join(letters)}->{''.join(letters[i] for i in permutation)}")


def nd_signatures(operator: Operator, sizes: Sequence[int]) -> Iterator[NdSignature]:
    """All legal signatures on a mesh of these sizes."""
    if not sizes:
        yield NdSignature((NdSbp(),) * operator.num_operands, NdSbp())
        return
    for outer in operator.signatures(sizes[0]):
        for inner in nd_signatures(operator.piece(outer, sizes[0]), sizes[1:]):
            operands = zip(outer.operands, inner.operands, strict=True)
            yield NdSignature(
                tuple(NdSbp([one, *rest]) for one, rest in operands),
                NdSbp([outer.result, *inner.result]),
            )


def infer(operator: Operator, operands: Sequence[NdSbp], mesh: Mesh) -> NdSbp:
    """What the result is, for operands held so.

    Raises:
        ValueError: devices could not work on their pieces alone.
    """
    result = []
    for axis, size in enumerate(mesh.shape):
        here = tuple(operand[axis] for operand in operands)
        legal = operator.signatures(size)
        signature = next((s for s in legal if s.operands == here), None)
        if signature is None:
            raise ValueError(
                f"{operator} has no signature for {', '.join(map(str, here))} on axis "
                f"{mesh.axes[axis]!r}, only {'; '.join(map(str, legal))}. Box an operand first."
            )
        result.append(signature.result)
        operator = operator.piece(signature, size)
    return NdSbp(result)


def markdown(operator: Operator, devices: int, names: Sequence[str]) -> str:
    """A table of the signatures, a column for each of the operands and the result."""
    rows = [
        names,
        ["---"] * len(names),
        *([*s.operands, s.result] for s in operator.signatures(devices)),
    ]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _elementwise(equation, linear):
    if _summed(equation):
        raise ValueError(
            f"{equation!r}: the result lacks {_summed(equation)!r}; elements only, sum by `einsum`."
        )
    return Lettered(equation, linear)


def _parse(equation: str) -> tuple[list[str], str]:
    terms, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise ValueError(f"{equation!r}: name every dimension and the result, as in 'ab,bc->ac'.")
    return terms.split(","), result


def _summed(equation: str) -> str:
    terms, result = _parse(equation)
    return "".join(dict.fromkeys(letter for letter in "".join(terms) if letter not in result))


def _strides(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(dimension, elements before it, its size): how often an outer loop gets to it."""
    before = 1
    for dim, size in enumerate(shape):
        yield dim, before, size
        before *= size


def _divided(shape: tuple[int, ...], dim: int, devices: int) -> tuple[int, ...]:
    return tuple(n // devices if i == dim else n for i, n in enumerate(shape))
