from lingvo_moe.planning import flow
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.sbp.types import Mesh

MESH = Mesh(("data", "expert", "model"), (2, 4, 2))
RULES = ShardingParams().compute_rules(MESH)


def test_columns_then_rows_have_one_reduction_each_way():
    assert flow.forward("RM,MH->RH", MESH, RULES) == []
    assert flow.forward("RH,HM->RM", MESH, RULES) == [("all-reduce", ("model",))]
    assert flow.backward("RH,HM->RM", MESH, RULES) == []
    assert flow.backward("RM,MH->RH", MESH, RULES) == [("all-reduce", ("model",))]


def test_rows_then_columns_reduce_the_wide_tensor():
    """Cut along M, the sum is due in the middle, where it is H wide."""
    rules = {"M": ("model",)}
    assert flow.forward("RM,MH->RH", MESH, rules) == [("all-reduce", ("model",))]
    assert flow.forward("RH,HM->RM", MESH, rules) == []


def test_a_cut_table_gives_summands_of_rows():
    assert flow.forward("BTV,VM->BTM", MESH, RULES) == [("all-reduce", ("model",))]
    assert flow.forward("BTV,VM->BTM", MESH, {"B": ("data",)}) == []


def test_groups_go_to_experts_over_their_axis_alone():
    assert flow.forward("eGCM->EgCM", MESH, RULES) == [("all-to-all", ("expert",))]


def test_axes_that_do_the_same_do_it_together():
    rules = {"H": ("data", "model")}
    assert flow.forward("RH,HM->RM", MESH, rules) == [("all-reduce", ("data", "model"))]
