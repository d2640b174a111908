"""The simulator as its users run it."""

import json

import numpy as np

from lingvo_moe.hardware.chips import hardware_to_json
from lingvo_moe.placement.traces import Trace
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.placements import calibrated

TOOL = "experiments.placement"


def test_a_trace_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    loads = rng.poisson([90, 5, 5, 5, 5, 5, 5, 5], (6, 2, 2, 8)).astype(np.int32)
    Trace(loads=loads, steps=np.arange(6), layers=("a", "b")).save(tmp_path / "loads.npz")
    on_four = (f"--trace={tmp_path / 'loads.npz'}", "--devices=4", "--skip=2", "--choices=5000")
    result = succeed(TOOL, *on_four, f"--output={tmp_path / 'page'}")
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
    again = error_of(TOOL, *on_four, f"--output={tmp_path / 'page'}")
    assert "page is not empty; pass --overwrite (in Python overwrite=True) or give" in again
    triggers = succeed(TOOL, *on_four, "--compare=triggers")
    for name in ("static, capacity 1", "flex", "IntervalTrigger(steps=5)"):
        assert name in triggers.stdout


def test_a_file_of_calibrate_gives_the_rates(tmp_path):
    """Rates of a file are used as they are; twice the rates take half the time."""
    seconds = []
    for scale, share in ((1, None), (2, None), (2, 0.5)):
        path, page = tmp_path / "here.json", tmp_path / f"{scale}{share}"
        path.write_text(json.dumps(hardware_to_json(calibrated(scale))))
        shares = [f"--{name}_efficiency={share}" for name in ("matmul", "network") if share]
        small = ("--synthetic", "--devices=2", "--steps=3", "--skip=0", "--slots=32")
        succeed(TOOL, *small, f"--hardware={path}", *shares, f"--output={page}")
        policies = json.loads((page / "placement.json").read_text())["policies"]
        seconds.append([policy["step_seconds"] for policy in policies[:2]])
    np.testing.assert_allclose(seconds[0], 2 * np.array(seconds[1]), rtol=1e-5)
    np.testing.assert_allclose(seconds[0], seconds[2], rtol=1e-5)


def test_errors_in_one_line():
    line = error_of(TOOL, "--synthetic", "--devices=2", "--steps=10")
    assert line == "error: --skip=20 leaves none of 10 steps; give a smaller number, or more steps."
    line = error_of(TOOL, "--synthetic", "--devices=2", "--hardware=a1000")
    assert "Unknown hardware 'a1000'; choose one of tpu_v3, " in line
    assert line.endswith("or a .json file of lingvo-moe-plan --calibrate.")
