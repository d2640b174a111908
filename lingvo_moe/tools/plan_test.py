"""lingvo-moe-plan as its users run it."""

import json

from lingvo_moe.testing.commands import error_of, succeed

MODEL = ("--model=tiny.MoE", "--set=model.moe.training=Einsum(groups=8)", "--hardware=cpu")


def test_a_search_writes_flags_that_plan_takes(tmp_path):
    found, planned = tmp_path / "found", tmp_path / "planned"
    result = succeed("plan", *MODEL, "--search", "--devices=8", f"--output={found}")
    assert ["chosen", "expert:8"] in [line.split()[:2] for line in result.stdout.splitlines()]
    chosen = json.loads((found / "search.json").read_text())[0]
    given = (f"--flagfile={found}/plan.flags", "--hardware=cpu", f"--output={planned}")
    plan = json.loads(succeed("plan", *given, "--json").stdout)
    assert json.loads((planned / "plan.json").read_text()) == plan
    assert plan["mesh"] == chosen["mesh"] == {"expert": 8}
    assert plan["step_seconds"] == chosen["step_seconds"]


def test_an_output_that_is_not_ours_is_found_before_the_search(tmp_path):
    (tmp_path / "plan.flags").write_text("mine")
    search = (*MODEL, "--search", "--devices=8", f"--output={tmp_path}", "--overwrite")
    line = error_of("plan", *search)
    assert f"error: {tmp_path} is not empty and was not made by lingvo-moe-plan" in line
    assert (tmp_path / "plan.flags").read_text() == "mine"
