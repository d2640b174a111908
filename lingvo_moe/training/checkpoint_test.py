import os

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.training.checkpoint import Best, Checkpointer, check_tensors

BFLOAT16 = tf.bfloat16.as_numpy_dtype
TENSORS = {"theta/w": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int64(7)}


def test_what_is_read_is_what_was_saved(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    best = Best(5, 3.25, 2)
    checkpoints.save(7, TENSORS, best)
    checkpoint = checkpoints.read(7)
    assert (checkpoint.step, checkpoint.best) == (7, best)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], value)
    alone = tf.train.load_checkpoint(str(tmp_path / "step_00000007" / "state"))
    np.testing.assert_array_equal(alone.get_tensor("theta/w"), TENSORS["theta/w"])


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpointer(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, TENSORS, Best(1))
    assert checkpoints.steps() == [1, 3, 4]
    assert checkpoints.best() == 1
    # 4 still names 1 as the best, so a run that resumes from 4 must find it.
    checkpoints.save(5, TENSORS, Best(5))
    assert checkpoints.steps() == [1, 4, 5]
    assert checkpoints.best() == 5
    checkpoints.save(6, TENSORS, Best(5))
    assert checkpoints.steps() == [5, 6]


def test_checkpoints_that_are_kept_for_ever(tmp_path):
    checkpoints = Checkpointer(tmp_path, 1, 3)
    for step in range(1, 9):
        checkpoints.save(step, TENSORS, Best(1))
    assert checkpoints.steps() == [1, 3, 6, 8]


def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(tmp_path, caplog):
    """Of every byte of every file: whoever reads a damaged value gets an error."""
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS)
    checkpoints.save(2, TENSORS, Best(1, 0.5))
    directory, found = tmp_path / "step_00000002", {}
    for file in sorted(directory.iterdir()):
        content = file.read_bytes()
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            try:
                checkpoint = checkpoints.read(2)
                assert checkpoint.best == Best(1, 0.5)
                for name, value in TENSORS.items():
                    np.testing.assert_array_equal(checkpoint.tensors[name], value)
                np.testing.assert_array_equal(
                    checkpoint.tensors["theta/w"][1:, :2], TENSORS["theta/w"][1:, :2]
                )
            except OSError:
                found[file.name] = found.get(file.name, 0) + 1
        file.write_bytes(content)
    assert found["state.data-00000-of-00001"] == 6 * 4 + 8  # every byte
    assert found["info.json"] >= 90
    assert found["state.index"] >= 90


def test_without_an_evaluation_the_newest_is_best(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    assert checkpoints.best() is None
    assert checkpoints.resume() is None
    checkpoints.save(3, TENSORS)
    assert checkpoints.best() == 3


def test_a_failed_write_leaves_the_earlier_ones_whole(tmp_path, monkeypatch):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS)

    def disk_full(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", disk_full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2, TENSORS)
    assert checkpoints.steps() == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    assert checkpoints.resume().step == 1


def test_no_checkpoint_is_overwritten(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, Best(1))
    with pytest.raises(OSError, match="exists already"):
        checkpoints.save(1, {"w": np.float32(3)})
    assert checkpoints.read(1).tensors.keys() == TENSORS.keys()
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]


def _damage(path):
    """Cuts a checkpoint's data short."""
    data = next(path.glob("state.data-*"))
    data.write_bytes(data.read_bytes()[:-10])


@pytest.mark.parametrize("keep", [1, 2])
def test_after_a_damaged_newest_as_many_good_ones_are_kept(tmp_path, caplog, keep):
    checkpoints = Checkpointer(tmp_path, keep)
    for step in (10, 20, 60):
        checkpoints.save(step, TENSORS, Best(10))
    _damage(tmp_path / "step_00000060")
    resumed = checkpoints.resume()
    assert "renamed to step_00000060.aside-1; you may delete it" in caplog.text
    for step in (resumed.step + 1, resumed.step + 2):
        checkpoints.save(step, TENSORS, Best(10))
        assert checkpoints.read(step).step == step
    kept = {1: [10, 12], 2: [10, 21, 22]}[keep]
    assert checkpoints.steps() == kept
    assert (tmp_path / "step_00000060.aside-1" / "info.json").exists()


def test_names_that_are_no_checkpoints(tmp_path):
    """They are ignored and unchanged."""
    checkpoints = Checkpointer(tmp_path, keep=1)
    for name in ("step_00000200.bak", "step_abc", "step_", "step_9", "step_x.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "info.json").write_text("mine")
    for name in ("step_notes.txt", "best.json", "step_00000001"):
        (tmp_path / name).write_text("mine")
    before = {p.name for p in tmp_path.iterdir()} - {"step_00000001"}
    assert (checkpoints.steps(), checkpoints.best()) == ([], None)
    assert checkpoints.resume() is None
    assert (tmp_path / "step_00000001.aside-1").read_text() == "mine"
    checkpoints.save(1, TENSORS)
    checkpoints.save(2, TENSORS)
    assert (checkpoints.steps(), checkpoints.best()) == ([2], 2)
    after = {p.name for p in tmp_path.iterdir()}
    assert after == before | {"step_00000001.aside-1", "step_00000002"}


BAD_INFO = (
    "{}",
    '{"best": {"step": -1}}',
    "\udcff",  # a byte that is not UTF-8
    None,
)


@pytest.mark.parametrize("content", BAD_INFO, ids=range(len(BAD_INFO)))
def test_a_damaged_info_file(tmp_path, caplog, content):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS, Best(1))
    checkpoints.save(2, TENSORS, Best(2))
    info = tmp_path / "step_00000002" / "info.json"
    info.unlink()
    if content is not None:
        info.write_text(content, errors="surrogateescape")
    assert checkpoints.best() == 1
    np.testing.assert_array_equal(checkpoints.read(2).tensors["theta/w"], TENSORS["theta/w"])
    with pytest.raises(OSError, match="or damaged"):
        _ = checkpoints.read(2).best
    assert checkpoints.resume().step == 1
    assert content is None or "step_00000002/info.json" in caplog.text
    checkpoints.save(2, TENSORS, Best(1))


def test_a_reader_of_the_best_follows_a_running_training(tmp_path):
    """Between opening and reading the best, training finds a better one and removes it."""
    checkpoints = Checkpointer(tmp_path, keep=1)
    checkpoints.save(1, {"theta/w": np.zeros(3)}, Best(1))
    seen = []

    def use(checkpoint):
        seen.append(checkpoint.step)
        if len(seen) < 3:
            step = checkpoint.step + 1
            checkpoints.save(step, {"theta/w": np.full(3, float(step))}, Best(step))
        np.testing.assert_array_equal(checkpoint.tensors["theta/w"], [len(seen)] * 3)

    assert checkpoints.read(use=use).step == 3
    assert seen == [1, 2, 3]


def test_a_damaged_best_is_an_error_and_no_other_is_taken_for_it(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, TENSORS, Best(1))
    _damage(tmp_path / "step_00000001")
    with pytest.raises(OSError, match="or damaged"):
        checkpoints.read()
    with pytest.raises(OSError, match="no checkpoint"):
        Checkpointer(tmp_path / "none").read()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("make", [tf.constant, lambda x: x.astype(BFLOAT16)])
def test_what_is_not_finite_is_never_saved(tmp_path, value, make):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, TENSORS)
    weights = np.zeros([4, 5], np.float32)
    weights[3, 2] = value
    with pytest.raises(FloatingPointError, match="'slots/v' has"):
        checkpoints.save(2, TENSORS | {"slots/v": make(weights)})
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]


def test_files_and_directories_are_synced_before_the_name_appears(tmp_path, monkeypatch):
    events, sync, rename = [], os.fsync, os.rename

    def note_sync(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def note_rename(source, target):
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    Checkpointer(tmp_path).save(1, TENSORS)
    partial = tmp_path / "step_00000001.partial"
    names = ("info.json", "state.index", "state.data-00000-of-00001")
    assert set(events[:-3]) == {f"{partial}/{name}" for name in names}
    assert events[-3:] == [str(partial), "rename", str(tmp_path)]


def test_tensors_are_held_against_a_model():
    shapes = {"step": (), "theta/w": (2, 3)}
    check_tensors(TENSORS | {"input/draws": np.int64(3), "slots/w": np.ones(2)}, shapes)
    for tensors, message in (
        ({"step": TENSORS["step"]}, "'theta/w': it"),
        (TENSORS | {"step": np.ones(3)}, "'step' is"),
        (TENSORS | {"theta/b": 1.0}, "as 'theta/b'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_tensors(tensors, shapes)
