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
import functools
from collections.abc import Iterator
from typing import NamedTuple

from lingvo_moe.sbp.types import B, NdSbp, P, Sbp, Split


class Signature(NamedTuple):
    """For one axis of a mesh."""

    operands: tuple[Sbp, ...]
    result: Sbp


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


class NdSignature(NamedTuple):
    """For all axes of a mesh."""

    operands: tuple[NdSbp, ...]
    result: NdSbp
    share: int  # the number of pieces of the work


@functools.cache
def on_mesh(operator: Operator, sizes: tuple[int, ...]) -> list[NdSignature]:
    """All legal signatures on a mesh of these sizes: one an axis, the outer axis first."""
    if not sizes:
        count = len(operator.signatures(1)[-1].operands)
        return [NdSignature((NdSbp(),) * count, NdSbp(), 1)]
    found = []
    for outer in operator.signatures(sizes[0]):
        shares = sizes[0] if any(isinstance(one, Split) for one in outer.operands) else 1
        for operands, result, share in on_mesh(operator.piece(outer, sizes[0]), sizes[1:]):
            both = zip(outer.operands, operands, strict=True)
            types = tuple(NdSbp([one, *rest]) for one, rest in both)
            found.append(NdSignature(types, NdSbp([outer.result, *result]), shares * share))
    return found


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
