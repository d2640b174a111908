"""The collectives of a layer's matrix products, from their letters alone.

A product with a weight is three products: forward, and backward for each operand. The sharding
rules give the types of the operands, the signatures (sbp/signatures.py) the type of the result, and
the rules the type that is needed. Boxing (sbp/boxing.py) gives the collectives between the two.
Letters are those of sbp/params.py.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lingvo_moe.sbp.annotations import Mesh
from lingvo_moe.sbp.boxing import collective
from lingvo_moe.sbp.signatures import Gather, Operator, einsum, infer
from lingvo_moe.sbp.types import NdSbp, from_rules

Rules = Mapping[str, tuple[str, ...]]


class Exchange(NamedTuple):
    """One collective: its kind as in HLO, axes along which devices communicate, and the tensor."""

    kind: str
    axes: tuple[str, ...]
    dims: str


def held(dims: str, mesh: Mesh, rules: Rules) -> NdSbp:
    """The type of a tensor with these letters."""
    return from_rules(dims, (None,) * len(dims), mesh, rules)


def exchanges(dims: str, source: NdSbp, target: NdSbp, mesh: Mesh) -> list[Exchange]:
    """The collectives from source to target; axes with the same change are combined."""
    axes: dict[str, list[str]] = {}
    for axis, before, after in zip(mesh.axes, source, target, strict=True):
        if kind := collective(before, after):
            axes.setdefault(kind, []).append(axis)
    return [Exchange(kind, tuple(names), dims) for kind, names in axes.items()]


def forward(equation: str, mesh: Mesh, rules: Rules) -> tuple[Exchange, ...]:
    """The collectives that give the result of "operand,weight->result" the type of its rules."""
    operands, result = _parts(equation)
    return _after(einsum, (equation,), operands, result, mesh, rules)


def backward(equation: str, mesh: Mesh, rules: Rules) -> tuple[Exchange, ...]:
    """The collectives of the operand's gradient, from the result's gradient and the weight."""
    (operand, weight), result = _parts(equation)
    transposed = f"{result},{weight}->{operand}"
    return _after(einsum, (transposed,), (result, weight), operand, mesh, rules)


def lookup(table: str, indices: str, over: str, mesh: Mesh, rules: Rules) -> tuple[Exchange, ...]:
    """The collectives of a table's lookup: table "VM", indices "BT", over "V"."""
    result = indices + table.replace(over, "")
    equation = f"{table},{indices}->{result}"
    return _after(Gather, (equation, over), (table, indices), result, mesh, rules)


def _after(make, arguments, operands, result, mesh, rules):
    letters = sorted(set("".join((*operands, result))))
    own = tuple((letter, tuple(rules[letter])) for letter in letters if letter in rules)
    return _cached(make, arguments, operands, result, mesh.axes, own)


@functools.cache
def _cached(
    make: Callable[..., Operator],
    arguments: tuple[str, ...],
    operands: tuple[str, ...],
    result: str,
    axes: tuple[str, ...],
    rules: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[Exchange, ...]:
    """Cached for meshes of all sizes, because the collectives do not depend on the sizes."""
    mesh, cuts = Mesh(axes, (2,) * len(axes)), dict(rules)
    given = infer(make(*arguments), [held(dims, mesh, cuts) for dims in operands], mesh)
    return tuple(exchanges(result, given, held(result, mesh, cuts), mesh))


def _parts(equation: str) -> tuple[tuple[str, str], str]:
    operands, result = equation.split("->")
    operand, weight = operands.split(",")
    return (operand, weight), result
