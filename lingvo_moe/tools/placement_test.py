"""The placement tool as its users run it."""

import json
import os
import subprocess
import sys

import numpy as np

from lingvo_moe.placement.traces import Trace


def _run(*arguments):
    command = [sys.executable, "-m", "lingvo_moe.tools.placement", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "80"}
    )


def test_a_trace_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    loads = rng.poisson([90, 5, 5, 5, 5, 5, 5, 5], (6, 2, 2, 8)).astype(np.int32)
    Trace(loads=loads, steps=np.arange(6), layers=("a", "b")).save(tmp_path / "loads.npz")
    on_four = (f"--trace={tmp_path / 'loads.npz'}", "--devices=4", "--skip=2", "--choices=5000")
    result = _run(*on_four, f"--output={tmp_path / 'page'}")
    assert result.returncode == 0, result.stderr
    first = [line.split("  ")[0] for line in result.stdout.splitlines()[2:]]
    assert first == [
        "static, capacity 1",
        "static, no limit",
        "strict re-assignment",
        "shadowing",
        "flex",
        "oracle",
    ]
    assert "flex: step 6/6" in result.stderr
    settings = json.loads((tmp_path / "page" / "placement.json").read_text())["settings"]
    assert (settings["devices"], settings["layers"], settings["experts"]) == (4, 2, 8)
    assert settings["choices of a device and step"] == 5000
    assert (tmp_path / "page" / "index.html").exists()
    again = _run(*on_four, f"--output={tmp_path / 'page'}")
    assert (again.returncode, again.stdout) == (1, "")
    assert "page is not empty; pass --overwrite or give another output" in again.stderr
    triggers = _run(*on_four, "--compare=triggers")
    assert triggers.returncode == 0, triggers.stderr
    for name in ("static, capacity 1", "flex", "flex, VarianceTrigger", "IntervalTrigger(steps=5)"):
        assert name in triggers.stdout


def test_errors_in_one_line():
    result = _run("--synthetic", "--devices=2", "--steps=10")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last == "error: Cannot skip 20 of 10 steps: at least one must count."
