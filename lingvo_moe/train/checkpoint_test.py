import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.train.checkpoint import Checkpointer

TENSORS = {"theta/w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int64(7)}


def test_what_is_read_is_what_was_saved(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(7, TENSORS, {"best": {"step": 7}})
    checkpoint = checkpoints.read(7)
    assert checkpoint.step == 7
    assert checkpoint.info == {"best": {"step": 7}}
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], value)


def test_tensorflow_alone_reads_it(tmp_path):
    Checkpointer(tmp_path).save(7, TENSORS, {})
    reader = tf.train.load_checkpoint(str(tmp_path / "step_00000007" / "state"))
    np.testing.assert_array_equal(reader.get_tensor("theta/w"), TENSORS["theta/w"])


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpointer(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, TENSORS, {})
        if step == 1:
            checkpoints.mark_best(1)
    assert checkpoints.steps() == [1, 3, 4]
    assert checkpoints.best() == 1


def test_without_a_mark_the_newest_is_best(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    assert checkpoints.best() is None
    assert checkpoints.read_latest() is None
    checkpoints.save(3, TENSORS, {})
    assert checkpoints.best() == 3


def test_a_truncated_checkpoint_is_passed_over(tmp_path, caplog):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {})
    checkpoints.save(2, TENSORS, {})
    data = next((tmp_path / "step_00000002").glob("state.data-*"))
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(OSError, match=r"missing or damaged"):
        checkpoints.read(2)
    assert checkpoints.read_latest().step == 1
    assert "Falling back" in caplog.text


def test_if_none_can_be_read_that_is_an_error(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {})
    (tmp_path / "step_00000001" / "state.index").write_bytes(b"")
    with pytest.raises(OSError, match=r"None of the checkpoints"):
        checkpoints.read_latest()


def test_a_failed_write_leaves_the_earlier_ones_whole(tmp_path, monkeypatch):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {})

    def disk_full(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", disk_full)
    with pytest.raises(OSError, match=r"No space left on device.*make room"):
        checkpoints.save(2, TENSORS, {})
    assert checkpoints.steps() == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    assert checkpoints.read_latest().step == 1
