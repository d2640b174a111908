import pytest

from lingvo_moe.sbp.params import ShardingParams, ZeRO
from lingvo_moe.sbp.types import Mesh, cuts, type_of

THREE = Mesh(("data", "expert", "model"), (2, 2, 2))


def axes(dims, mesh, sharding=ShardingParams(), *, stored=False):  # noqa: B008
    rules = sharding.storage_rules(mesh) if stored else sharding.compute_rules(mesh)
    return cuts(len(dims), type_of(dims, (None,) * len(dims), mesh, rules), mesh)


def test_one_default_serves_meshes_of_one_two_and_three_axes():
    two = Mesh(("data", "expert"), (2, 4))
    for mesh, rows, experts, hidden in (
        (Mesh(("data",), (8,)), ("data",), (), ()),
        (Mesh(("expert",), (8,)), ("expert",), ("expert",), ()),
        (two, ("data", "expert"), ("expert",), ()),
        (THREE, ("data", "expert"), ("expert",), ("model",)),
    ):
        assert axes("BTM", mesh) == [rows, (), ()]
        assert axes("GSM", mesh) == [rows, (), ()]
        assert axes("EMH", mesh) == [experts, (), hidden]


def test_between_the_all_to_alls_experts_are_cut_and_groups_over_data_alone():
    assert axes("EgCM", THREE) == [("expert",), ("data",), (), ()]
    assert axes("ErH", THREE) == [("expert",), ("data",), ("model",)]


def test_zero_cuts_weights_at_rest_only():
    assert axes("EMH", THREE, ZeRO(), stored=True) == [("expert",), ("data",), ("model",)]
    assert axes("EMH", THREE, ZeRO()) == [("expert",), (), ("model",)]
    assert axes("EMH", THREE, stored=True) == axes("EMH", THREE)
    # A mesh without "data" cannot split them.
    assert axes("MA", Mesh(("expert",), (8,)), ZeRO(), stored=True) == [(), ()]


def test_an_axis_that_no_rule_names():
    with pytest.raises(ValueError, match="'pipe'"):
        ShardingParams().compute_rules(Mesh(("pipe",), (2,)))
    own = ShardingParams(rules=(("M", ("pipe",)),))
    assert own.compute_rules(Mesh(("pipe",), (2,))) == {"M": ("pipe",)}
