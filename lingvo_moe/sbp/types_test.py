import numpy as np
import pytest

from lingvo_moe.sbp import types
from lingvo_moe.sbp.types import Mesh, P, S, parse
from lingvo_moe.testing.sbp import cut, join

GRID = Mesh(("x", "y"), (2, 3))
LINE = Mesh(("x",), (4,))


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_text_both_ways(axes):
    values = list(types.every(3, axes))
    assert len(set(values)) == 5**axes
    assert [parse(str(value)) for value in values] == values


@pytest.mark.parametrize("text", ["S(-1)", "S(0)B"])
def test_unknown_text(text):
    with pytest.raises(ValueError, match="Unknown placement"):
        parse(text)


def test_outermost_first():
    # Six elements over 2, then each half over 3: device (x, y) holds element 3x + y.
    pieces = cut(np.arange(6), parse("S(0),S(0)"), GRID, np.random.default_rng(0))
    assert pieces.tolist() == [[[0], [1], [2]], [[3], [4], [5]]]
    pieces = cut(np.arange(12).reshape(2, 6), parse("S(1),S(0)"), Mesh(("x", "y"), (2, 2)), None)
    assert pieces[0, 1].tolist() == [[6, 7, 8]]  # the left half's second row


def test_cut_and_join():
    random = np.random.default_rng(1)
    array = random.integers(-50, 50, (6, 12))
    for value in types.every(2, 2):
        pieces = cut(array, value, GRID, random)
        assert pieces.shape == (2, 3, *types.piece_shape((6, 12), value, GRID))
        np.testing.assert_array_equal(join(pieces, value, GRID), array)
    summands = cut(array, parse("P"), LINE, random)
    np.testing.assert_array_equal(summands.sum(0), array)
    assert all(part.any() for part in summands)


def test_uneven():
    with pytest.raises(ValueError, match="4 equal"):
        types.piece_shape((6,), parse("S(0)"), LINE)


def test_types_of_rules():
    for value in types.every(2, 2):
        if P not in value:
            named = list(zip(GRID.axes, value, strict=True))
            rules = {x: tuple(a for a, one in named if one == S(i)) for i, x in enumerate("BM")}
            assert types.type_of("BM", (6, 12), GRID, rules) == value
    assert types.type_of("BM", (6, 12), GRID, {"M": ("x", "y")}) == parse("S(1),S(1)")
    with pytest.raises(ValueError, match="inner before"):
        types.type_of("B", (6,), GRID, {"B": ("y", "x")})
