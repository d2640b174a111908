"""A logdir is made only where nothing else is."""

import shutil

import pytest

from lingvo_moe import api
from lingvo_moe.tasks.model_dir import ModelDir, check_new_logdir
from lingvo_moe.testing.tiny_world import SHRINK, dataset


def _contents(directory):
    """File -> its bytes; all other paths -> None."""
    return {one: one.read_bytes() if one.is_file() else None for one in directory.rglob("*")}


def test_a_prepared_dataset_is_left_alone(tmp_path):
    data = tmp_path / "other"
    shutil.copytree(dataset().directory, data)
    before = _contents(data)
    with pytest.raises(ValueError, match="no logdir"):
        api.train("tiny.MoE", dataset(), data, set=SHRINK)
    with pytest.raises(ValueError, match="no logdir"):
        ModelDir.for_training(data, "tiny.MoE", SHRINK, dataset())
    assert _contents(data) == before


def test_a_path_that_tensorflow_cannot_read(tmp_path):
    with pytest.raises(ValueError, match=r"without '\['"):
        check_new_logdir(tmp_path / "lr[0.1]")


def test_what_an_interrupted_start_leaves_may_be_there(tmp_path):
    """And files of the user."""
    made = ModelDir.create(tmp_path / "whole", "tiny.MoE", SHRINK, dataset())
    logdir = tmp_path / "logdir"
    (logdir / "checkpoints").mkdir(parents=True)
    (logdir / "train.log").touch()
    for side in ("source", "target"):
        shutil.copy(made.path / f"{side}.model", logdir)
    ModelDir.for_training(logdir, "tiny.MoE", SHRINK, dataset())  # raises nothing
    (logdir / "target.model").write_text("of the user")
    check_new_logdir(logdir)  # the data are not known yet
    with pytest.raises(ValueError, match=r"target\.model"):
        ModelDir.for_training(logdir, "tiny.MoE", SHRINK, dataset())
    (logdir / "checkpoints" / "step_00000001").mkdir()
    with pytest.raises(ValueError, match="step_00000001"):
        check_new_logdir(logdir)
