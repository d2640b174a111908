"""The step that is saved for a replay is the one that ended training last."""

import os

import numpy as np
import pytest

from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.process import ALONE
from lingvo_moe.training.recovery import DIRECTORY, save_for_replay


def _save(logdir, step, x):
    return save_for_replay(logdir, step, {"w": np.float32(2)}, {"x": np.float32(x)}, ALONE)


@pytest.mark.parametrize("step", [4500, 4999, 5500])
def test_the_newest_save_replaces_one_of_any_step(tmp_path, step):
    _save(tmp_path, 4999, x=1)
    saved = _save(tmp_path, step, x=3)
    assert list((tmp_path / DIRECTORY).iterdir()) == [saved]
    checkpoint = Checkpointer(tmp_path / DIRECTORY).read()
    assert (checkpoint.path, checkpoint.step) == (saved, step)
    assert [float(np.asarray(checkpoint.tensors[n])) for n in ("w", "batch/x")] == [2, 3]


@pytest.mark.parametrize("step", [4500, 4999])
def test_a_save_that_fails_leaves_the_one_before(tmp_path, step):
    saved = _save(tmp_path, 4999, x=1)
    with pytest.raises(FloatingPointError, match=r"'batch/x' has NaN or infinity"):
        _save(tmp_path, step, x=np.nan)
    assert list((tmp_path / DIRECTORY).iterdir()) == [saved]
    assert float(np.asarray(Checkpointer(saved.parent).read(4999).tensors["batch/x"])) == 1


def test_if_the_new_one_cannot_be_put_in_place_the_old_one_is(tmp_path, monkeypatch):
    saved, rename = _save(tmp_path, 4999, x=1), os.rename

    def full(source, target):
        if str(source).endswith("4999.partial"):
            raise OSError("No space left")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(OSError, match="No space left"):
            _save(tmp_path, 4999, x=3)
    assert list((tmp_path / DIRECTORY).iterdir()) == [saved]
    assert float(np.asarray(Checkpointer(saved.parent).read(4999).tensors["batch/x"])) == 1


def test_what_is_no_saved_step_stays(tmp_path):
    mine = tmp_path / DIRECTORY / "step_00000001" / "notes"
    mine.parent.mkdir(parents=True)
    mine.touch()
    saved = _save(tmp_path, 4500, x=3)
    assert {*saved.parent.iterdir()} == {saved, mine.parent}
    with pytest.raises(OSError, match=r"step_00000001 is no complete checkpoint; move it away"):
        _save(tmp_path, 1, x=3)
    assert mine.exists()
