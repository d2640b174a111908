"""lingvo-moe-experts as its users run it: in a process of its own."""

import dataclasses
import shutil

import numpy as np
import pytest

from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.tiny_world import SHRINK, dataset


def _model_dir(path, model="tiny.MoE"):
    return ModelDir.create(path, model, SHRINK, dataset())


def test_the_record_of_a_logdir(tmp_path):
    model_dir = _model_dir(tmp_path)
    load = np.ones((2, len(model_dir.pairs), 8))
    load[0, :, 0] = 9
    RoutingRecord(
        layers=tuple(model_dir.task.moe_layers),
        pairs=model_dir.pairs,
        num_experts=np.array([8, 8]),
        **dict.fromkeys(("pair_load", "pair_first", "pair_confidence"), load),
    ).save(model_dir.routing_path)
    lines = succeed("experts", f"--logdir={tmp_path}").stdout.splitlines()
    # The busiest expert has 9 of 16 choices, 4.5 times an eighth: 3.5 more than balance.
    assert lines[2].split()[:4] == ["encoder/layer_01", "8", "3.50", "0"]
    assert lines[-1].split()[:3] == [model_dir.pairs[-1], "0", "(56%)"]


@pytest.mark.slow
def test_only_the_counts_of_dev_are_kept_for_pruning(tmp_path):
    model_dir = random_logdir(tmp_path / "model", SMALLEST)
    of = f"--logdir={model_dir.path}", f"--data={dataset().directory}"
    test = succeed("experts", *of, "--split=test").stdout
    assert not model_dir.routing_path.exists()
    dev = succeed("experts", *of).stdout
    counts = model_dir.routing_path.read_bytes()
    assert dev == succeed("experts", f"--logdir={model_dir.path}").stdout != test
    assert succeed("experts", *of, "--split=test").stdout == test
    assert model_dir.routing_path.read_bytes() == counts
    shutil.copytree(dataset().directory, tmp_path / "part")
    dataclasses.replace(dataset(), directory=tmp_path / "part", pairs=dataset().pairs[:1]).save()
    stays = succeed("experts", of[0], f"--data={tmp_path / 'part'}").stderr
    assert "would be lost" in stays
    assert model_dir.routing_path.read_bytes() == counts


def test_no_record_yet(tmp_path):
    _model_dir(tmp_path)
    message = error_of("experts", f"--logdir={tmp_path}")
    assert message.startswith(f"error: {tmp_path}/routing.npz holds no record of routing")
    assert "train.eval_every" in message
