"""What a device computes and sends; collectives of matrix products, from their letters.

The sharding rules give the types of the operands, the signatures (sbp/signatures.py) the type of
the result, and the rules the type that is needed. Boxing (sbp/boxing.py) gives the collectives
between the two and their bytes, without detours: XLA takes none, also where one would send less.
Letters are those of sbp/params.py.
"""

import dataclasses
import fractions
import functools
from collections.abc import Mapping
from typing import Any

from lingvo_moe.sbp.boxing import Step, direct
from lingvo_moe.sbp.signatures import Lettered, on_mesh
from lingvo_moe.sbp.types import Mesh, Rules, type_of

PARTS = (
    *("attention", "feed_forward", "experts", "gating", "dispatch", "all_to_all"),
    *("tensor_parallel", "gradients", "softmax", "optimizer"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Computation of one device in one step: matrix products' FLOPs, and bytes of its memory."""

    part: str
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication:
    """Communication of one device in one step."""

    part: str  # which of PARTS it belongs to
    kind: str  # as in HLO: "all-to-all", "all-reduce", "all-gather"
    bytes: float  # of a device, all collectives together
    axes: tuple[str, ...]  # of the mesh, along which devices communicate
    count: int  # number of collectives; gradients, which XLA combines, count as one for a group


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCost:
    """The cost of one group of blocks for a device and step."""

    # work, transfers: computation and communication
    work: tuple[Computation, ...]
    transfers: tuple[Communication, ...]
    # weights, optimizer, gradients: bytes at rest
    weights: float
    optimizer: float
    gradients: float
    in_use: float  # bytes of gathered or cast weights, in addition to those at rest
    # bytes from the forward to the backward pass, for one layer of each kind
    kept: tuple[float, ...]
    inputs: float = 0.0  # bytes of the inputs of all layers
    logits: float = 0.0  # bytes of logits and their gradient


Sizes = Mapping[str, int | fractions.Fraction]  # letter -> size of the whole dimension


def forward(equation: str, sizes: Sizes, item: int, mesh: Mesh, rules: Rules) -> tuple[Step, ...]:
    """The steps that give the result of a product, or of a copy "eGCM->EgCM", its type; item is the
    bytes of an element. A lookup in a table is a product with a one-hot operand.
    """
    own = tuple((letter, rules[letter]) for letter in sorted({*equation} & {*rules}))
    shape: list[Any] = [sizes[letter] for letter in equation.partition("->")[2]]
    source, target = _types(equation, mesh, own)
    return direct(source, target, shape, item, mesh)


def backward(equation: str, sizes: Sizes, item: int, mesh: Mesh, rules: Rules) -> tuple[Step, ...]:
    """Those of the operand's gradient of "operand,weight->result"."""
    terms, result = equation.split("->")
    operand, weight = terms.split(",")
    return forward(f"{result},{weight}->{operand}", sizes, item, mesh, rules)


@functools.cache
def _types(equation, mesh, rules):
    """The type that the result has by the signature, and the one that the rules want."""
    *operands, target = (
        type_of(d, (None,) * len(d), mesh, dict(rules))
        for d in equation.replace("->", ",").split(",")
    )
    if len(operands) == 1:
        return operands[0], target
    ways = on_mesh(Lettered(equation), mesh.shape)
    return next(way.result for way in ways if way.operands == tuple(operands)), target
