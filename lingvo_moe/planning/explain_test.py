import dataclasses
import math

import pytest

from lingvo_moe.core import plugins
from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.planning.alternatives import HAND, compare_strategies
from lingvo_moe.planning.explain import flags, format_search, overrides, search_to_json
from lingvo_moe.planning.search import BlockChoice, Strategy, apply_strategy, make_mesh
from lingvo_moe.testing.small_models import MOE, SMALL


def strategy(*, cut="", spread="", zero=False, remat=False, sizes=(2, 2, 2)):
    groups = ("heads", "hidden", "vocabulary", "rest")
    choices = tuple(BlockChoice(group, group[:2] in cut, group[:2] in spread) for group in groups)
    return Strategy(make_mesh(*sizes), choices, zero, remat)


@pytest.mark.parametrize(
    ("model", "given", "wanted"),
    [
        ("tiny.MoE", strategy(cut="he hi vo"), []),
        ("tiny.MoE", strategy(sizes=(2, 4, 1)), []),  # no axis, no cut: the default rules say so
        ("tiny.MoE", strategy(cut="he hi vo", zero=True), ["sharding=ZeRO()"]),
        (
            "tiny.MoE",
            strategy(sizes=(1, 8, 1), spread="he vo re", remat=True),
            [
                "sharding=ShardingParams(state_rules="
                "(('A', ('expert',)), ('V', ('expert',)), ('e', ('expert',))))",
                "model.remat=True",
            ],
        ),
        (
            "tiny.MoE",
            strategy(cut="hi", spread="he", zero=True),
            [
                "sharding=ShardingParams(rules=(('B', ('data', 'expert')), "
                "('G', ('data', 'expert')), ('R', ('data', 'expert')), ('g', ('data',)), "
                "('r', ('data',)), ('E', ('expert',)), ('H', ('model',))), "
                "state_rules=(('M', ('data',)), ('A', ('expert',))))"
            ],
        ),
        # Layers in a loop are computed again anyway; kept, they cannot be in a loop. Its own rules
        # at rest make room for the chosen ones.
        (
            "m4.MoE128E12L",
            strategy(cut="he hi vo", remat=True),
            ["sharding=ShardingParams()"],
        ),
        (
            "m4.MoE128E12L",
            strategy(cut="he hi vo", zero=True),
            ["sharding=ZeRO()", "model.scan=False"],
        ),
    ],
)
def test_overrides_make_the_same_params(model, given, wanted):
    params = get_params(model)
    assert overrides(params, given) == wanted
    assert override(params, wanted) == apply_strategy(params, given)


def test_a_letter_cut_at_rest_and_in_use_names_both_axes():
    given = strategy(cut="he", spread="he")
    assert given.sharding.state_rules == (("A", ("expert", "model")),)
    assert given.stored["A"] == ("expert", "model")


@pytest.fixture(scope="module")
def small():
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE])
    return params, compare_strategies(params, HARDWARE["cpu"], 8, math.inf)


def test_flags(small):
    params, found = small
    best = found.found.best.strategy
    lines = flags("tiny.MoE", [*SMALL, *MOE], params, best).splitlines()
    assert lines[:4] == [
        "--undefok=runtime",
        "--model=tiny.MoE",
        "--runtime=spmd",
        "--mesh=expert:8",
    ]
    sets = [line.removeprefix("--set=") for line in lines[4:]]
    assert override(get_params("tiny.MoE"), sets) == apply_strategy(params, best)


def test_flags_name_the_plug_ins(small, monkeypatch):
    params, found = small
    monkeypatch.setattr(plugins, "imported", lambda: ("mine", "/there/gates.py"))
    lines = flags("mine.Model", [], params, found.found.best.strategy).splitlines()
    assert lines[1:4] == ["--import=mine", "--import=/there/gates.py", "--model=mine.Model"]


def test_text_and_json(small):
    _, found = small
    lines = format_search("tiny.MoE", "cpu", 8, found).splitlines()
    names = ["chosen", "second", HAND, "data parallel", "ZeRO", "tensor parallel"]
    table = [line for line in lines if line.startswith(tuple(names))]
    assert [next(n for n in names if line.startswith(n)) for line in table] == names
    assert "1.00x" in table[0]
    as_json = search_to_json(found)
    assert [row["name"] for row in as_json] == names
    assert as_json[0]["step_seconds"] == found.found.best.seconds
    assert as_json[0]["fits"]
    assert as_json[0]["sent_limit"] == {"bytes": None, "within": True}


def test_a_limit_of_what_is_sent_is_named(small):
    params, found = small
    assert "and send" not in format_search("tiny.MoE", "cpu", 8, found)
    limited = compare_strategies(params, HARDWARE["cpu"], 8)
    lines = format_search("tiny.MoE", "cpu", 8, limited).splitlines()
    assert lines[1].startswith("and send")
    assert lines[1].endswith("GB per step or less")
    squeezed = compare_strategies(params, HARDWARE["cpu"], 8, found.found.best.sent / 100)
    lines = format_search("tiny.MoE", "cpu", 8, squeezed).splitlines()
    assert lines[1].endswith("or less; none of them fits, so the one that sends least")
    limit = {"bytes": found.found.best.sent / 100, "within": False}
    assert search_to_json(squeezed)[0]["sent_limit"] == limit


def test_what_is_not_possible_says_why():
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE, "model.moe.num_groups=4"])
    found = compare_strategies(params, HARDWARE["cpu"], 8)
    refused = found.alternatives["data parallel"]
    assert "moe.num_groups=4 must be a multiple of 8, the pieces" in refused
    assert "data parallel is not possible: moe.num_groups=4" in format_search(
        "tiny.MoE", "cpu", 8, found
    )
    tiny_memory = dataclasses.replace(HARDWARE["cpu"], memory=found.found.best.bytes / 0.9 + 1)
    squeezed = compare_strategies(params, tiny_memory, 8)
    assert not squeezed.alternatives["tensor parallel"].fits
