"""lingvo-moe-plan as its users run it."""

import json
import os
import subprocess
import sys

MODEL = (
    "--model=tiny.MoE",
    "--set=model.moe.num_groups=8",
    "--set=model.moe.dispatcher=Einsum()",
    "--hardware=cpu",
)


def run(*arguments):
    command = [sys.executable, "-m", "lingvo_moe.tools.plan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)


def test_a_search_writes_flags_that_plan_takes(tmp_path):
    result = run(*MODEL, "--search", "--devices=8", f"--output={tmp_path}")
    assert result.returncode == 0, result.stderr
    assert "chosen                  expert:8" in result.stdout
    chosen = json.loads((tmp_path / "search.json").read_text())[0]
    again = run(f"--flagfile={tmp_path}/plan.flags", "--hardware=cpu", "--json")
    assert again.returncode == 0, again.stderr
    plan = json.loads(again.stdout)
    assert plan["mesh"] == chosen["mesh"] == {"expert": 8}
    assert plan["step_seconds"] == chosen["step_seconds"]


def test_an_output_that_is_not_ours_is_found_before_the_search(tmp_path):
    (tmp_path / "plan.flags").write_text("mine")
    result = run(*MODEL, "--search", "--devices=8", f"--output={tmp_path}", "--overwrite")
    assert result.returncode == 1
    assert f"error: {tmp_path} is not empty and was not made by lingvo-moe-plan" in result.stderr
    assert result.stdout == ""
    assert (tmp_path / "plan.flags").read_text() == "mine"


def test_a_mesh_cannot_be_given_to_a_search():
    result = run(*MODEL, "--search", "--devices=8", "--mesh=data:8")
    assert result.returncode == 1
    assert "error: --search chooses the mesh; leave out --mesh" in result.stderr
