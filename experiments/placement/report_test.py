"""Tests of table, JSON, pictures and page."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.placement.loads import SyntheticLoads
from experiments.placement.plots import draw_ratios
from experiments.placement.policies import Flex, StaticExpertParallel
from experiments.placement.report import Comparison
from experiments.placement.simulate import replay_all, summarize_replay
from lingvo_moe.reporting.figure import COLORS
from lingvo_moe.testing.pages import parse_page
from lingvo_moe.testing.pictures import ink
from lingvo_moe.testing.placements import make_cost


@pytest.fixture(scope="module")
def made():
    trace = SyntheticLoads(devices=4, experts=16, top=4, steps=12, tokens=256).generate()
    cost = make_cost(4, token_bytes=1e-3, gradient_bytes=0.05, state_bytes=0.5)
    runs = replay_all(trace, cost, 8, (StaticExpertParallel(), Flex()))
    return trace, runs, compare(runs, skip=4)


def compare(runs, skip=0):
    summaries = tuple(summarize_replay(run, skip) for run in runs)
    return Comparison(settings={"trace": "<made>"}, summaries=summaries)


def test_the_table(made):
    _, _, report = made
    head, _, static, flex = report.table().to_text().splitlines()
    assert head.split()[0] == "policy"
    assert static.startswith("static, capacity 1")
    assert static.split()[-2:] == ["1.00x", "1.00x"]
    ours, theirs = report.summaries[1], report.summaries[0]
    assert f"{theirs.step_seconds / ours.step_seconds:.2f}x" in flex
    assert "100.0" in flex


def test_the_page_holds_everything(made, tmp_path):
    trace, runs, report = made
    report.write(tmp_path / "new", trace, runs)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"index.html", "placement.json", "loads.png", "ratios.png", "placement.png"}
    checker = parse_page((tmp_path / "new" / "index.html").read_text("utf-8"))
    text = " ".join(checker.cells)
    assert "trace <made>" in text
    assert "flex" in text
    assert len(checker.links) == 3
    assert all(link.startswith("data:image/png;base64,") for link in checker.links)
    numbers = json.loads((tmp_path / "new" / "placement.json").read_text())
    assert [p["policy"] for p in numbers["policies"]] == ["static, capacity 1", "flex"]
    assert numbers["policies"][0]["speed_up"] == 1
    assert numbers["policies"][1]["token_efficiency"] == 1
    ratios = (tmp_path / "new" / "ratios.png").read_bytes()
    assert all(ink(ratios, color, tolerance=20) > 100 for color in COLORS[: len(runs)])
    assert not ink(ratios, COLORS[len(runs)], tolerance=20)  # a line for each policy, and no more


def test_steps_that_take_no_time(made):
    trace, (run, *_), _ = made
    for share in (0.0, np.arange(12)[:, None] > 5):
        quick = dataclasses.replace(
            run, seconds=run.seconds * share, adjustment_seconds=0 * run.adjustment_seconds
        )
        assert ink(draw_ratios([quick], trace.steps, "quick"), COLORS[0]) > 0


def test_one_step_of_one_policy(tmp_path):
    trace = SyntheticLoads(devices=2, experts=4, top=1, steps=1, tokens=16).generate()
    runs = replay_all(trace, make_cost(2), 2, (StaticExpertParallel(),))
    compare(runs).write(tmp_path, trace, runs)
    (policy,) = json.loads((tmp_path / "placement.json").read_text())["policies"]
    assert (policy["policy"], policy["speed_up"]) == ("static, capacity 1", 1)
    assert ink((tmp_path / "ratios.png").read_bytes(), COLORS[0]) > 0
