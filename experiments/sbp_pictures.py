"""Draws the parts of tensors on devices, and the tables of the algebra, for docs/sbp.md.

`python -m experiments.sbp_pictures` prints them; a test compares them with the page.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from lingvo_moe.reporting.table import Table
from lingvo_moe.sbp import boxing, signatures, types
from lingvo_moe.sharding.annotations import Mesh
from lingvo_moe.testing.sbp import cut

_LINE = Mesh(("x",), (2,))
_GRID = Mesh(("x", "y"), (2, 2))


def blocks() -> list[str]:
    """Every generated part, in the order of the page."""
    ways = ("S(0),S(1)", "S(0),S(0)", "S(1),B", "B,P", "S(0),P")
    return [
        _code(draw(types.parse(text), (4, 4), _LINE) for text in ("S(0)", "S(1)", "B", "P")),
        _code(draw(types.parse(text), (4, 4), _GRID) for text in ways),
        signature_table(signatures.einsum("ab,bc->ac"), 2, ["A", "B", "C"]),
        signature_table(
            signatures.Gather("vm,bl->blm", "v"), 2, ["table vm", "numbers bl", "rows blm"]
        ),
        signature_table(signatures.add("bm,m->bm"), 2, ["x", "bias", "x + bias"]),
        signature_table(signatures.softmax("bm", "m"), 2, ["x", "softmax over m"]),
        signature_table(signatures.Reshape((8, 6), (4, 2, 6)), 2, ["x [8, 6]", "x [4, 2, 6]"]),
        boxing_table(4),
        _code(
            "\n".join(
                map(str, boxing.plan(types.parse(source), types.parse(target), (8, 16), 4, _GRID))
            )
            for source, target in (("S(0),S(0)", "B,S(0)"), ("P,P", "S(0),B"), ("P,S(1)", "B,B"))
        ),
    ]


def draw(held: types.NdSbp, shape: tuple[int, int], mesh: Mesh) -> str:
    """Draws a matrix once for each device, with marks for the elements that the device holds.

    Args:
        held: the type of the matrix.
        shape: of the matrix; a few rows and columns.
        mesh: the devices.

    Returns:
        Lines: the text of `held`, the devices' places on the mesh, and the rows.
    """
    mark = "▒" if types.P in held else "█"
    cells = np.arange(shape[0] * shape[1]).reshape(shape)
    whole = types.NdSbp(types.B if one == types.P else one for one in held)
    pieces = cut(cells, whole, mesh, np.random.default_rng(0))
    places = list(itertools.product(*map(range, mesh.shape)))
    titles = [f"device {','.join(map(str, place))}" for place in places]
    width = max(map(len, titles)) + 2
    lines = [f"{held!s:10}" + "".join(f"{title:{width}}" for title in titles)]
    for row in cells:
        drawn = ("".join(mark if c in pieces[p] else "·" for c in row) for p in places)
        lines.append(" " * 10 + "".join(f"{text:{width}}" for text in drawn))
    return "\n".join(line.rstrip() for line in lines)


def signature_table(operator: signatures.Operator, devices: int, names: Sequence[str]) -> str:
    """A table of the signatures, a column for each of the operands and the result."""
    rows = [[str(one) for one in (*s.operands, s.result)] for s in operator.signatures(devices)]
    return Table(names, rows).to_markdown()


def boxing_table(devices: int, shape: tuple[int, ...] = (8, 8)) -> str:
    """The table for one axis: the collective of each pair, and bytes received as parts of n."""
    mesh, size = Mesh(("x",), (devices,)), math.prod(shape)
    kinds: list[types.Sbp] = [types.Split(0), types.B, types.P]
    rows = []
    for source in kinds:
        row = [f"**{source}**"]
        for target in [*kinds, types.Split(1)]:
            steps_ = boxing.plan(types.NdSbp([source]), types.NdSbp([target]), shape, 1, mesh)
            row.append(_cell(source, target, sum(s.received for s in steps_) / size, steps_))
        rows.append(row)
    return Table(("from \\ to", *map(str, kinds), "S(1)"), rows).to_markdown()


def _cell(source, target, part, taken):
    if source == target:
        return "–"
    return f"{taken[0].kind}, {part} n" if taken[0].kind else "local, 0"


def _code(parts) -> str:
    return "```\n" + "\n\n".join(parts) + "\n```"


if __name__ == "__main__":
    print("\n\n".join(blocks()))
