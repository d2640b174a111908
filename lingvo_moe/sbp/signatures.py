"""Signatures: types of operands with which devices need no communication, and of the result.

Yuan et al. 2021 (arXiv 2110.15032), section 3.2. A signature gives the types for one axis of a
mesh. Signatures follow from an operator's letters:

- a letter of the result: operands with it are split along it, the others are B, and the result is
  split along it;
- a letter that is summed: operands with it are split along it, and the result is P;
- linear operators keep sums: one operand P and the others B give P;
- all operands B give B.

On a mesh of several axes there is one signature for each; an inner one applies to the pieces of the
outer ones.
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
    """An operator of the algebra: a rule for its signatures."""

    @property
    @abc.abstractmethod
    def num_operands(self) -> int:
        """The number of operands."""

    @abc.abstractmethod
    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """All legal signatures on an axis of `devices` devices; no two have the same operands."""

    def piece(self, signature: Signature, devices: int) -> "Operator":
        """The operator that each device computes under this signature."""
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
        equation: as in einsum; a letter is a dimension.
        linear: how the operator treats P.
        whole: letters of dimensions that must not be split.
    """

    equation: str
    linear: Linear
    whole: str = ""

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
        """The number of terms."""
        return len(self.terms)

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """See Operator; the result is the same for any number of devices."""
        letters = dict.fromkeys("".join([self.result, *self.terms]))
        cuts = [self._cut(letter) for letter in letters if self._may_cut(letter)]
        copies = Signature((B,) * self.num_operands, B)
        return (*cuts, *self._sums(), copies)

    def _may_cut(self, letter):
        # The two dimensions of a diagonal would have to be split together, by one axis.
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
    """A row-major reshape.

    S(i) becomes S(j) if both split the elements in the same way: the product of the sizes before i
    equals the product of the sizes before j.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    num_operands = 1

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        cuts = (
            Signature((Split(i),), Split(j))
            for i, before, size in _strides(self.source)
            for j, as_before, other in _strides(self.target)
            if before == as_before and size % devices == other % devices == 0 and devices > 1
        )
        return (*cuts, Signature((P,), P), Signature((B,), B))

    def piece(self, signature: Signature, devices: int) -> "Reshape":
        (source,), result = signature
        if not (isinstance(source, Split) and isinstance(result, Split)):
            return self
        return Reshape(
            _divided(self.source, source.dim, devices),
            _divided(self.target, result.dim, devices),
        )


@dataclasses.dataclass(frozen=True)
class Gather(Operator):
    """A lookup of a table's rows by number: equation "VM,BL->BLM", over the letter "V".

    It is the product of the table with a one-hot tensor, which each device makes for the rows it
    holds. If the rows of the table are split, a device gives zeros for the rows of others, and the
    result is P.
    """

    equation: str
    over: str
    num_operands = 2

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        (table, indices), result = _parse(self.equation)
        product = einsum(f"{table},{indices}{self.over}->{result}").signatures(devices)
        made_locally = Split(len(indices))
        return tuple(
            Signature((rows, B if one_hot == made_locally else one_hot), out)
            for (rows, one_hot), out in product
            if one_hot != P  # the result is not linear in the row numbers
        )


def einsum(equation: str) -> Lettered:
    """Sums of products, transposes, and sums over dimensions."""
    return Lettered(equation, Linear.EACH)


def add(equation: str) -> Lettered:
    """A sum of tensors with broadcasting: "BM,M->BM"; the result has all letters."""
    return Lettered(equation, Linear.TOGETHER)


def elementwise(equation: str) -> Lettered:
    """Any other elementwise function, such as relu or max(x, y); for products use `einsum`."""
    return Lettered(equation, Linear.NOT)


def softmax(dims: str, over: str) -> Lettered:
    """Softmax, or another non-linear operator along dimensions, such as norms, sorting or top k.

    Args:
        dims: one letter a dimension.
        over: the letters of the dimensions along which it works.
    """
    return Lettered(f"{dims}->{dims}", Linear.NOT, whole=over)


def mean(equation: str) -> Lettered:
    """The mean over the letters that the result lacks; for a sum use `einsum`.

    It is linear, but the means of pieces do not add up to the mean, so these letters stay whole.

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
    """The type of the result for operands of these types.

    Raises:
        ValueError: there is no such signature; the message lists the legal ones.
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


def _parse(equation: str) -> tuple[list[str], str]:
    terms, _, result = equation.replace(" ", "").partition("->")
    return terms.split(","), result


def _summed(equation: str) -> str:
    terms, result = _parse(equation)
    return "".join(dict.fromkeys(letter for letter in "".join(terms) if letter not in result))


def _strides(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(dimension, product of the sizes before it, its size)."""
    before = 1
    for dim, size in enumerate(shape):
        yield dim, before, size
        before *= size


def _divided(shape: tuple[int, ...], dim: int, devices: int) -> tuple[int, ...]:
    return tuple(n // devices if i == dim else n for i, n in enumerate(shape))
