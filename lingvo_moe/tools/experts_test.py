"""lingvo-moe-experts as its users run it: in a process of its own."""

import json

import numpy as np
import pytest

from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.tiny_world import SHRINK, dataset


def _model_dir(path, model="tiny.MoE"):
    return ModelDir.create(path, model, SHRINK, dataset())


def test_a_logdir_with_a_record_becomes_a_page(tmp_path):
    model_dir = _model_dir(tmp_path)
    load = np.ones((2, len(model_dir.pairs), 8))
    load[0, :, 0] = 9
    RoutingRecord(
        layers=tuple(model_dir.task.moe_layers),
        pairs=model_dir.pairs,
        num_experts=np.array([8, 8]),
        **dict.fromkeys(("pair_load", "pair_first", "pair_confidence"), load),
    ).save(model_dir.routing_path)
    result = succeed("experts", f"--logdir={tmp_path}")
    # The busiest expert has 9 of 16 choices, 4.5 times an eighth: 3.5 more than balance.
    assert result.stdout.splitlines()[2].split()[:4] == ["encoder/layer_01", "8", "3.50", "0"]
    assert result.stderr.strip().endswith(f"Page: {tmp_path}/experts/index.html")
    assert "<title>tiny.MoE: experts" in (tmp_path / "experts" / "index.html").read_text()
    numbers = json.loads((tmp_path / "experts" / "experts.json").read_text())
    assert len(numbers["languages"]) == len(model_dir.pairs)
    # The page is replaced each time, unless the directory has a file of the user.
    (tmp_path / "experts" / "notes.txt").write_text("mine")
    message = error_of("experts", f"--logdir={tmp_path}")
    assert "files that lingvo-moe-experts did not make" in message
    assert "notes.txt" in message
    (tmp_path / "experts" / "notes.txt").unlink()
    succeed("experts", f"--logdir={tmp_path}")


@pytest.mark.slow
def test_only_the_counts_of_dev_are_kept_for_pruning(tmp_path):
    model_dir = random_logdir(tmp_path / "model", SMALLEST)

    def page(split, output):
        of = f"--logdir={model_dir.path}", f"--data={dataset().directory}", f"--split={split}"
        succeed("experts", *of, f"--output={tmp_path / output}")
        return (tmp_path / output / "index.html").read_text()

    assert "choices of the tokens of test." in page("test", "one")
    assert not model_dir.routing_path.exists()
    assert "choices of the tokens of dev." in page("dev", "two")
    counts = model_dir.routing_path.read_bytes()
    assert "two is not empty" in error_of(
        "experts",
        f"--logdir={model_dir.path}",
        f"--data={dataset().directory}",
        f"--output={tmp_path}/two",
    )
    page("test", "three")
    assert model_dir.routing_path.read_bytes() == counts
    json_of = [(tmp_path / name / "experts.json").read_text() for name in ("one", "two", "three")]
    assert json_of[0] == json_of[2] != json_of[1]


def test_no_record_yet(tmp_path):
    _model_dir(tmp_path)
    message = error_of("experts", f"--logdir={tmp_path}")
    assert message.startswith(f"error: {tmp_path}/routing.npz holds no record of routing")
    assert "train.eval_every" in message
