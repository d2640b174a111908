import dataclasses
import math

import pytest

from lingvo_moe.config import plugins
from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.planning.explain import flags, format_search, overrides, search_to_json
from lingvo_moe.planning.search import (
    HAND,
    Strategy,
    apply_strategy,
    compare_strategies,
    make_mesh,
)
from lingvo_moe.testing.small_models import MOE, SMALL

CUT = ("heads", "hidden", "vocabulary")
EVERY = make_mesh(2, 2, 2)


@pytest.mark.parametrize(
    ("model", "given", "wanted"),
    [
        ("tiny.MoE", Strategy(EVERY, CUT), []),
        ("tiny.MoE", Strategy(make_mesh(2, 4, 1)), []),  # no axis, no cut: the default rules say so
        ("tiny.MoE", Strategy(EVERY, CUT, zero=True), ["sharding=ZeRO()"]),
        (
            "tiny.MoE",
            Strategy(make_mesh(1, 8, 1), spread=("heads", "vocabulary", "rest"), remat=True),
            [
                "sharding=ShardingParams(state_rules="
                "(('A', ('expert',)), ('V', ('expert',)), ('e', ('expert',))))",
                "model.remat=True",
            ],
        ),
        (
            "tiny.MoE",
            Strategy(EVERY, ("hidden",), ("heads",), zero=True),
            [
                "sharding=ShardingParams(rules=(('B', ('data', 'expert')), "
                "('G', ('data', 'expert')), ('R', ('data', 'expert')), ('g', ('data',)), "
                "('r', ('data',)), ('E', ('expert',)), ('H', ('model',))), "
                "state_rules=(('M', ('data',)), ('A', ('expert',))))"
            ],
        ),
        # Layers in a loop are computed again anyway; kept, they cannot be in a loop. Its own rules
        # at rest make room for the chosen ones.
        ("m4.MoE128E12L", Strategy(EVERY, CUT, remat=True), ["sharding=ShardingParams()"]),
        (
            "m4.MoE128E12L",
            Strategy(EVERY, CUT, zero=True),
            ["sharding=ZeRO()", "model.scan=False"],
        ),
    ],
)
def test_overrides_make_the_same_params(model, given, wanted):
    params = get_params(model)
    assert overrides(params, given) == wanted
    assert override(params, wanted) == apply_strategy(params, given)


def test_a_letter_cut_at_rest_and_in_use_names_both_axes():
    assert Strategy(EVERY, ("heads",), ("heads",)).stored["A"] == ("expert", "model")


@pytest.fixture(scope="module")
def small():
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE])
    return params, compare_strategies(params, HARDWARE["cpu"], 8, math.inf)


def test_flags(small, monkeypatch):
    params, found = small
    monkeypatch.setattr(plugins, "imported", lambda: ("mine", "/there/gates.py"))
    lines = flags("tiny.MoE", [*SMALL, *MOE], params, found.best.strategy).splitlines()
    assert lines[:6] == [
        "--undefok=runtime",
        "--import=mine",
        "--import=/there/gates.py",
        "--model=tiny.MoE",
        "--runtime=spmd",
        "--mesh=expert:8",
    ]
    sets = [line.removeprefix("--set=") for line in lines[6:]]
    assert override(get_params("tiny.MoE"), sets) == apply_strategy(params, found.best.strategy)


def test_text_and_json(small):
    params, found = small
    lines = format_search("tiny.MoE on 8 x cpu", found).splitlines()
    names = ["chosen", HAND, "data parallel", "ZeRO", "tensor parallel"]
    table = [line for line in lines if line.startswith(tuple(names))]
    assert [next(n for n in names if line.startswith(n)) for line in table] == names
    assert "1.00x" in table[0]
    as_json = search_to_json(found)
    assert [row["name"] for row in as_json] == names
    assert as_json[0]["step_seconds"] == found.best.seconds
    assert as_json[0]["sent_limit"] == {"bytes": None, "within": True}
    least = found.best.sent / 100
    squeezed = compare_strategies(params, HARDWARE["cpu"], 8, least)
    assert "none of them fits" in format_search("", squeezed).splitlines()[1]
    assert search_to_json(squeezed)[0]["sent_limit"] == {"bytes": least, "within": False}


def test_what_is_not_possible_says_why():
    params = override(get_params("tiny.MoE"), [*SMALL, *MOE, "model.moe.training.groups=4"])
    found = compare_strategies(params, HARDWARE["cpu"], 8)
    assert "groups=4" in found.alternatives["data parallel"]
    assert "data parallel is not possible: model.moe.training.groups=4" in format_search("", found)
    tiny_memory = dataclasses.replace(HARDWARE["cpu"], memory=found.best.bytes / 0.9 + 1)
    squeezed = compare_strategies(params, tiny_memory, 8)
    assert not squeezed.alternatives["tensor parallel"].fits
