"""Several processes that save and restore together, simulated by threads."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.testing.shards import Barrier, Sharded
from lingvo_moe.training.checkpoint import Best, Checkpointer
from lingvo_moe.training.process import Process

MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)
VECTOR = np.arange(8, dtype=np.float64)


def _states(processes, offset=0):
    """What each of them holds: by rows, by columns, on one device twice, whole in each."""
    cut = {
        "theta/w": Sharded.by_process(MATRIX + offset, (processes, 1), processes),
        "slots/w": Sharded.by_process(MATRIX * 2 + offset, (1, 2), processes),
        "theta/b": Sharded.by_process(VECTOR + offset, (1,), processes),
    }
    return [
        {name: held[p] for name, held in cut.items()} | {"input/draws": np.int64(5 + offset)}
        for p in range(processes)
    ]


def _expected(offset=0):
    whole = {"theta/w": MATRIX + offset, "slots/w": MATRIX * 2 + offset, "theta/b": VECTOR + offset}
    return whole | {"input/draws": np.int64(5 + offset)}


def _each(directories, act):
    """act(checkpointer, index) in as many processes at once; what each returned or raised."""
    meeting = Barrier(len(directories))

    def run(index):
        process = Process(index, meeting.minimum_of(index))
        try:
            return act(Checkpointer(directories[index], process=process), index)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(directories)) as pool:
        return list(pool.map(run, range(len(directories))))


def _save(directory, step, states):
    """Each process gives another step as the best: its own number."""
    directories = [directory] * len(states)
    return _each(directories, lambda c, i: c.save(step, states[i], Best(i)))


def _assert_holds(checkpoint, expected):
    assert checkpoint.tensors.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(checkpoint.tensors[name], value, err_msg=name)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_what_processes_save_together_any_one_reads(tmp_path, processes):
    paths = _save(tmp_path, 7, _states(processes))
    assert paths == [tmp_path / "step_00000007"] * processes
    checkpoint = Checkpointer(tmp_path).resume()
    assert checkpoint.best == Best(0)
    _assert_holds(checkpoint, _expected())
    names = {p.name.split("-")[0] for p in paths[0].iterdir()}
    assert names == {"info.json", "state.index", "state.data"}


def _failing(monkeypatch, operation, matching):
    """The operation fails with a full disk where its paths contain a text."""
    original = getattr(tf.raw_ops, operation)

    def fail(**arguments):
        if matching in str(arguments):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return original(**arguments)

    monkeypatch.setattr(tf.raw_ops, operation, fail)


@pytest.mark.parametrize(
    ("operation", "matching", "culprit"),
    [
        ("SaveV2", "process-00002", 2),
        ("SaveV2", "process-00000", 0),
        ("MergeV2Checkpoints", "step_", 0),
    ],
)
def test_if_one_fails_all_raise_and_nothing_is_lost(
    tmp_path, monkeypatch, operation, matching, culprit
):
    _save(tmp_path, 1, _states(4))
    with monkeypatch.context() as patch:
        _failing(patch, operation, matching)
        errors = _save(tmp_path, 2, _states(4, offset=100))
    assert all(isinstance(error, OSError) for error in errors)
    for process, error in enumerate(errors):
        why = "No space left on device" if process == culprit else "another process failed"
        assert why in str(error)
        assert "Earlier checkpoints are untouched" in str(error)
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    _assert_holds(Checkpointer(tmp_path).resume(), _expected())
    _save(tmp_path, 2, _states(4, offset=100))
    _assert_holds(Checkpointer(tmp_path).read(2), _expected(100))


def test_what_crashed_saves_left_is_cleared_away(tmp_path):
    stale = tmp_path / "step_00000001.partial"
    _save(tmp_path, 1, _states(4, offset=100))
    (tmp_path / "step_00000001").rename(stale)
    for name in ("process-00003-00000.index", "process-00009-00000.index"):
        shutil.copy(stale / "state.index", stale / name)
    shutil.copytree(stale, tmp_path / "step_00000005.partial")
    assert Checkpointer(tmp_path).resume() is None
    _save(tmp_path, 1, _states(2))
    _assert_holds(Checkpointer(tmp_path).resume(), _expected())
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]


def test_a_directory_that_is_not_shared(tmp_path):
    states = _states(2)
    errors = _each([tmp_path / "host-0", tmp_path / "host-1"], lambda c, i: c.save(1, states[i]))
    assert "another process failed" in str(errors[0])
    assert "must be one that all processes share" in str(errors[1])
    assert not list(tmp_path.glob("host-*/*"))


def test_a_nan_in_one_process_stops_all(tmp_path):
    _save(tmp_path, 1, _states(2))
    states = _states(2, offset=100)
    states[1]["theta/w"].addressable_shards[0].data[0, 2] = np.nan
    errors = _save(tmp_path, 2, states)
    assert "another process failed, see its log" in str(errors[0])
    assert isinstance(errors[1], FloatingPointError)
    assert str(errors[1]).startswith("'theta/w' has NaN or infinity. Nothing was saved")
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]


def test_all_fall_back_if_one_cannot_read(tmp_path, caplog):
    for step in (1, 2):
        _save(tmp_path, step, _states(2, offset=step))

    def read(checkpointer, index):
        def use(checkpoint):
            if index == 1 and checkpoint.step == 2:
                raise OSError("a bad sector")

        return checkpointer.resume(use).step

    assert _each([tmp_path] * 2, read) == [1, 1]
    assert "a bad sector" in caplog.text
    assert "Another process cannot read checkpoint" in caplog.text


def test_checkpoints_that_one_process_alone_sees_are_not_trained_over(tmp_path):
    _save(tmp_path / "shared", 1, _states(1))
    errors = _each([tmp_path / "shared", tmp_path / "empty"], lambda c, _: c.resume())
    assert all("can be read" in str(error) for error in errors)


def test_all_take_the_newest_that_each_sees(tmp_path):
    for step in (1, 2):
        _save(tmp_path / "new", step, _states(1))
    shutil.copytree(tmp_path / "new" / "step_00000001", tmp_path / "old" / "step_00000001")
    directories = [tmp_path / "new", tmp_path / "old"]
    assert [c.step for c in _each(directories, lambda c, _: c.resume())] == [1, 1]
