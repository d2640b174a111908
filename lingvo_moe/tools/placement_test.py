"""The placement tool as its users run it."""

import json

import numpy as np

from lingvo_moe.placement.traces import Trace
from lingvo_moe.testing.commands import error_of, succeed


def test_a_trace_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    loads = rng.poisson([90, 5, 5, 5, 5, 5, 5, 5], (6, 2, 2, 8)).astype(np.int32)
    Trace(loads=loads, steps=np.arange(6), layers=("a", "b")).save(tmp_path / "loads.npz")
    on_four = (f"--trace={tmp_path / 'loads.npz'}", "--devices=4", "--skip=2", "--choices=5000")
    result = succeed("placement", *on_four, f"--output={tmp_path / 'page'}")
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
    again = error_of("placement", *on_four, f"--output={tmp_path / 'page'}")
    assert "page is not empty; pass --overwrite or give another output" in again
    triggers = succeed("placement", *on_four, "--compare=triggers")
    for name in ("static, capacity 1", "flex", "flex, VarianceTrigger", "IntervalTrigger(steps=5)"):
        assert name in triggers.stdout


def test_errors_in_one_line():
    line = error_of("placement", "--synthetic", "--devices=2", "--steps=10")
    assert line == "error: Cannot skip 20 of 10 steps: at least one must count."
