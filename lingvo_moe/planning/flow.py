"""What a device computes and sends; collectives of matrix products, from their letters alone.

The sharding rules give the types of the operands, the signatures (sbp/signatures.py) the type of
the result, and the rules the type that is needed. XLA goes from one to the other directly, also
where a detour (sbp/boxing.py) would send less. Letters are those of sbp/params.py.
"""

import dataclasses
import functools

from lingvo_moe.sbp.boxing import collective
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


Exchange = tuple[str, tuple[str, ...]]  # kind as in HLO, and axes along which devices communicate


def forward(equation: str, mesh: Mesh, rules: Rules) -> list[Exchange]:
    """The collectives that give the result of a product, or of a copy "eGCM->EgCM", its type.

    A lookup in a table is a product with a one-hot operand.
    """
    own = tuple((letter, rules[letter]) for letter in sorted({*equation} & {*rules}))
    return _cached(equation, mesh.axes, own)


def backward(equation: str, mesh: Mesh, rules: Rules) -> list[Exchange]:
    """Those of the operand's gradient of "operand,weight->result"."""
    terms, result = equation.split("->")
    operand, weight = terms.split(",")
    return forward(f"{result},{weight}->{operand}", mesh, rules)


@functools.cache
def _cached(equation, axes, rules):
    """Cached for meshes of all sizes, because the collectives do not depend on the sizes."""
    mesh, terms = Mesh(axes, (2,) * len(axes)), equation.replace("->", ",").split(",")
    *operands, target = (type_of(d, (None,) * len(d), mesh, dict(rules)) for d in terms)
    source = operands[0]
    if len(operands) > 1:
        ways = on_mesh(Lettered(equation), mesh.shape)
        source = next(way.result for way in ways if way.operands == tuple(operands))
    found: dict[str, list[str]] = {}
    for axis, before, after in zip(axes, source, target, strict=True):
        if kind := collective(before, after):
            found.setdefault(kind, []).append(axis)
    return [(kind, tuple(names)) for kind, names in found.items()]
