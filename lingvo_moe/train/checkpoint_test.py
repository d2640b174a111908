import signal
import subprocess
import sys

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


def test_a_checkpoint_of_one_whole_bundle_is_read(tmp_path):
    path = tmp_path / "step_00000007"
    path.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(path / "state"),
        tensor_names=["theta/w", "step"],
        shape_and_slices=["", ""],
        tensors=[tf.constant(TENSORS["theta/w"]), tf.constant(7, tf.int64)],
    )
    (path / "info.json").write_text('{"best": {"step": 7}}')
    checkpoint = Checkpointer(tmp_path).read_latest()
    assert checkpoint.info == {"best": {"step": 7}}
    assert checkpoint.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], value)


def test_a_changed_byte_is_found_by_whoever_reads_it(tmp_path, caplog):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {})
    checkpoints.save(2, TENSORS, {})
    data = next((tmp_path / "step_00000002").glob("state.data-*"))
    content = bytearray(data.read_bytes())
    content[3] ^= 1
    data.write_bytes(content)
    assert checkpoints.read_latest().step == 2  # nothing was read yet
    taken = []
    checkpoint = checkpoints.read_latest(
        lambda c: taken.append({n: np.asarray(t) for n, t in c.tensors.items()})
    )
    assert checkpoint.step == 1
    assert [t["step"] for t in taken] == [7]
    assert "is damaged or gone" in caplog.text


def test_what_a_model_cannot_use_is_no_damage(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {})

    def of_another_model(checkpoint):
        raise ValueError("of another model")

    with pytest.raises(ValueError, match=r"of another model"):
        checkpoints.read_latest(of_another_model)


def test_saving_a_step_anew_replaces_it(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, {"try": 1})
    checkpoints.save(1, {"w": np.float32(3)}, {"try": 2})
    assert checkpoints.read(1).info == {"try": 2}
    assert list(checkpoints.read(1).tensors) == ["w"]
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]


_KILLED_IN_MID_SAVE = """
import os, signal, sys
from pathlib import Path
import numpy as np, tensorflow as tf
from lingvo_moe.train import bundle
from lingvo_moe.train.checkpoint import Checkpointer
bundle._WRITE_BYTES = 40
checkpoints = Checkpointer(Path(sys.argv[1]))
checkpoints.save(1, {"a": np.arange(10.), "b": np.arange(9.)}, {})
save, calls = tf.raw_ops.SaveV2, []
def save_once(**arguments):
    if calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(save(**arguments))
tf.raw_ops.SaveV2 = save_once
checkpoints.save(2, {"a": np.zeros(10), "b": np.zeros(9)}, {})
"""


def test_killed_between_two_pieces(tmp_path):
    killed = subprocess.run([sys.executable, "-c", _KILLED_IN_MID_SAVE, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = {p.name for p in (tmp_path / "step_00000002.partial").iterdir()}
    assert left == {"process-00000-00000.index", "process-00000-00000.data-00000-of-00001"}
    checkpoints = Checkpointer(tmp_path)
    checkpoint = checkpoints.read_latest()
    assert checkpoint.step == 1
    np.testing.assert_array_equal(checkpoint.tensors["a"], np.arange(10.0))
    np.testing.assert_array_equal(checkpoint.tensors["b"], np.arange(9.0))
    checkpoints.save(3, TENSORS, {})
    assert {p.name for p in tmp_path.iterdir()} == {"step_00000001", "step_00000003"}
