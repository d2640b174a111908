import functools

import numpy as np
import pytest

from lingvo_moe.sbp import types
from lingvo_moe.sbp.types import B, NdSbp, P, S, parse
from lingvo_moe.sharding import partition
from lingvo_moe.sharding.annotations import Mesh, assignment

GRID = Mesh(("x", "y"), (2, 3))
LINE = Mesh(("x",), (4,))


@pytest.mark.parametrize("axes", [0, 1, 2])
def test_text_both_ways(axes):
    values = list(types.every(3, axes))
    assert len(set(values)) == 5**axes
    assert [parse(str(value)) for value in values] == values


def test_text():
    assert str(NdSbp([S(0), B])) == "S(0),B"
    assert parse(" S(12) , P") == (S(12), P)
    assert repr(parse("P")) == "NdSbp(P)"


@pytest.mark.parametrize("text", ["S", "S(-1)", "S(0)B", "b", "S(0);B"])
def test_unknown_text(text):
    with pytest.raises(ValueError, match=r"Unknown placement .* write S\(i\), B or P"):
        parse(text)


def test_dimensions_count_from_0():
    with pytest.raises(ValueError, match=r"from 0, got S\(-1\)"):
        S(-1)


def test_outermost_first():
    # Six elements over 2, then each half over 3: device (x, y) holds element 3x + y.
    pieces = types.cut(np.arange(6), parse("S(0),S(0)"), GRID, np.random.default_rng(0))
    assert pieces.tolist() == [[[0], [1], [2]], [[3], [4], [5]]]
    pieces = types.cut(
        np.arange(12).reshape(2, 6), parse("S(1),S(0)"), Mesh(("x", "y"), (2, 2)), None
    )
    assert pieces[0, 1].tolist() == [[6, 7, 8]]  # the left half's second row


def test_cut_and_join():
    random = np.random.default_rng(1)
    array = random.integers(-50, 50, (6, 12))
    for value in types.every(2, 2):
        pieces = types.cut(array, value, GRID, random)
        assert pieces.shape == (2, 3, *types.piece_shape((6, 12), value, GRID))
        np.testing.assert_array_equal(types.join(pieces, value, GRID), array)
    summands = types.cut(array, parse("P"), LINE, random)
    np.testing.assert_array_equal(summands.sum(0), array)
    assert all(part.any() for part in summands)


def test_copies_that_differ():
    with pytest.raises(ValueError, match="copies of B along 'x' differ"):
        types.join(np.arange(4), parse("B"), LINE)


def test_uneven():
    with pytest.raises(ValueError, match=r"Dimension 0 of shape \(6,\) has 6 elements.* 4 equal"):
        types.piece_shape((6,), parse("S(0)"), LINE)


def test_fits_the_mesh():
    with pytest.raises(ValueError, match="'B' has 1 parts and the mesh the axes"):
        types.check(parse("B"), 1, GRID)
    with pytest.raises(ValueError, match=r"S\(2\) of 'B,S\(2\)' cuts no dimension .* rank 2"):
        types.check(parse("B,S(2)"), 2, GRID)


def test_rules_both_ways():
    for value in types.every(2, 2):
        if P in value:
            with pytest.raises(
                ValueError, match=r"Rules cannot say .* P is a sum still to be made"
            ):
                types.to_rules(value, "BM", GRID)
            continue
        rules = types.to_rules(value, "BM", GRID)
        assert types.from_rules("BM", (6, 12), GRID, rules) == value
        assert types.split_axes(value, 2, GRID) == assignment("BM", (6, 12), GRID, rules)
    assert types.to_rules(parse("S(1),S(1)"), "BM", GRID) == {"M": ("x", "y")}


def test_inner_before_outer():
    with pytest.raises(ValueError, match=r"cut over \('y', 'x'\), inner before outer"):
        types.from_rules("B", (6,), GRID, {"B": ("y", "x")})


def test_gshard_calls_by_hand():
    call = types.to_gshard(parse("S(1)"), 3, LINE)
    assert call.func is partition.split
    assert call.keywords == {"split_dimension": 1, "num_partitions": 4}
    assert types.to_gshard(parse("B,B"), 2, GRID).func is partition.replicate
    # x cuts columns in 2, y rows in 3: the piece of row r and column c lives on device 3c + r.
    call = types.to_gshard(parse("S(1),S(0)"), 2, GRID)
    assert call.func is partition.shard
    assert call.keywords["device_assignment"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("mesh", [LINE, GRID])
def test_gshard_both_ways(mesh):
    for value in types.every(3, len(mesh.axes)):
        if P in value or (B in value and set(value) != {B}):
            with pytest.raises(ValueError, match="GShard's calls cannot say"):
                types.to_gshard(value, 3, mesh)
        else:
            assert types.from_gshard(types.to_gshard(value, 3, mesh), 3, mesh) == value


def test_gshard_that_no_mesh_order_gives():
    reversed_ = functools.partial(partition.shard, device_assignment=np.array([3, 2, 1, 0]))
    with pytest.raises(ValueError, match=r"places pieces as \[3, 2, 1, 0\]"):
        types.from_gshard(reversed_, 1, LINE)
    # On a mesh of two axes GShard's split is a cut over both.
    halves = functools.partial(partition.split, split_dimension=0, num_partitions=6)
    assert types.from_gshard(halves, 2, GRID) == parse("S(0),S(0)")
