"""A crash at every point of a run's saves, simulated by an exception that nothing catches."""

import contextlib
import os
import shutil

import numpy as np
import tensorflow as tf

from lingvo_moe.training import bundle
from lingvo_moe.training.checkpoint import Best, Checkpointer

NAMES = ("theta/w", "theta/v")
# Which step was the best when each step was saved, its own among them.
BEST = {10: 10, 20: 10, 30: 10, 40: 40, 50: 40}
# All operations that write, rename or delete.
OPERATIONS = (
    (tf.raw_ops, "SaveV2"),
    (tf.raw_ops, "MergeV2Checkpoints"),
    (os, "mkdir"),
    (os, "fsync"),
    (os, "rename"),
    (os, "rmdir"),
    (os, "unlink"),
)


class Killed(BaseException):
    """No `except Exception` catches it, as nothing stops a kill."""


class Crash:
    """Lets some operations pass and refuses all after them, as if the process had died."""

    def __init__(self, monkeypatch, operations):
        self._left = operations
        for module, name in OPERATIONS:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, operation):
        def run(*args, **kwargs):
            if self._left <= 0:
                raise Killed
            self._left -= 1
            return operation(*args, **kwargs)

        return run


def _save(checkpoints, step):
    best = Best(BEST[step], 1 / BEST[step])
    checkpoints.save(step, {name: np.full(3, step, np.float32) for name in NAMES}, best)


def _run(checkpoints, done):
    """Saves every step but the last after the one that it resumes from, and notes each."""
    checkpoint = checkpoints.resume()
    for step in list(BEST)[:-1]:
        if checkpoint is None or step > checkpoint.step:
            _save(checkpoints, step)
            done.append(step)


def _assert_readable(checkpoints, step):
    for name in NAMES:
        np.testing.assert_array_equal(checkpoints.read(step).tensors[name], [step] * 3)


def test_a_crash_anywhere_loses_neither_the_newest_nor_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: None
    )  # slow, and the test has no power failure
    monkeypatch.setattr(bundle, "_WRITE_BYTES", 12)  # each tensor is written by itself
    seen = set()
    for operations in range(200):
        checkpoints, done = Checkpointer(tmp_path / str(operations), keep=1), [0]
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            Crash(patch, operations)
            _run(checkpoints, done)
        if done[-1] == 40:
            break
        newest = (checkpoints.steps() or [0])[-1]
        seen.add((done[-1], newest))
        assert newest in (done[-1], done[-1] + 10)  # the save under way may be there already
        if newest:
            _assert_readable(checkpoints, newest)
            assert checkpoints.best() == BEST[newest]
            _assert_readable(checkpoints, BEST[newest])
        _run(checkpoints, [])
        _save(checkpoints, 50)
        assert sorted(path.name for path in checkpoints.directory.iterdir()) == [
            "step_00000040",
            "step_00000050",
        ]
        assert checkpoints.best() == 40
        shutil.rmtree(checkpoints.directory)
    assert operations > 48
    # Every save was interrupted before and after its checkpoint appeared.
    before, after = ({(s - 10, s - off) for s in (10, 20, 30, 40)} for off in (10, 0))
    assert seen == before | after
