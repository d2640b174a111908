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

from lingvo_moe.sbp.annotations import Mesh
from lingvo_moe.sbp.types import B, NdSbp, P, Sbp, Split


class Signature(NamedTuple):
    """For one axis of a mesh."""

    operands: tuple[Sbp, ...]
    result: Sbp

    def __str__(self):
        return f"{', '.join(map(str, self.operands))} → {self.result}"


class Operator(abc.ABC):
    """An operator of the algebra: a rule for its signatures."""

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
    """An operator described by an equation.

    An einsum, a transpose or a sum over dimensions is linear of EACH. A sum of tensors with
    broadcasting, "BM,M->BM", is linear TOGETHER. The mean over letters that the result lacks is
    linear, but the means of pieces do not add up to the mean: its letters are `whole`. Of other
    functions, such as relu, softmax or a maximum, `whole` are the letters along which they work.

    Attributes:
        equation: as in einsum; a letter is a dimension.
        linear: how the operator treats P.
        whole: letters of dimensions that must not be split.
    """

    equation: str
    linear: Linear = Linear.EACH
    whole: str = ""

    def __str__(self):
        return self.equation

    def signatures(self, devices: int) -> tuple[Signature, ...]:
        """See Operator; the result is the same for any number of devices."""
        terms, result = _parse(self.equation)
        found = []
        for letter in dict.fromkeys("".join([result, *terms])):
            # The two dimensions of a diagonal would have to be split together, by one axis.
            if letter not in self.whole and all(term.count(letter) < 2 for term in terms):
                cut = tuple(Split(t.index(letter)) if letter in t else B for t in terms)
                found.append(Signature(cut, Split(result.index(letter)) if letter in result else P))
        count = len(terms)
        if self.linear == Linear.EACH:
            ones = (tuple(P if i == j else B for j in range(count)) for i in range(count))
            found += [Signature(operands, P) for operands in ones]
        elif self.linear == Linear.TOGETHER:
            found.append(Signature((P,) * count, P))
        return (*found, Signature((B,) * count, B))


@dataclasses.dataclass(frozen=True)
class Reshape(Operator):
    """A row-major reshape.

    S(i) becomes S(j) if both split the elements in the same way: the product of the sizes before i
    equals the product of the sizes before j.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]

    def __str__(self):
        return f"{self.source}->{self.target}"

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
    return Lettered(equation)


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


def _strides(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(dimension, product of the sizes before it, its size)."""
    before = 1
    for dim, size in enumerate(shape):
        yield dim, before, size
        before *= size


def _divided(shape: tuple[int, ...], dim: int, devices: int) -> tuple[int, ...]:
    return tuple(n // devices if i == dim else n for i, n in enumerate(shape))
