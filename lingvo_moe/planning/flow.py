"""The collectives of a layer's matrix products, from their letters alone.

The sharding rules give the types of the operands, the signatures (sbp/signatures.py) the type of
the result, and the rules the type that is needed. XLA goes from one to the other directly, also
where a detour (sbp/boxing.py) would send less. Letters are those of sbp/params.py.
"""

import functools

from lingvo_moe.sbp.boxing import collective
from lingvo_moe.sbp.signatures import Lettered, on_mesh
from lingvo_moe.sbp.types import Mesh, Rules, type_of

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
