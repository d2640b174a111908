import threading

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.training.checkpoint import NO_BEST, Checkpointer
from lingvo_moe.training.saver import HostCopies, Saver


class Slow(Checkpointer):
    """Writes when it is allowed to."""

    allowed = threading.Event()

    def save(self, step, tensors, best=NO_BEST):
        assert self.allowed.wait(60)
        return super().save(step, tensors, best)


def _value(checkpoints, step):
    return np.asarray(checkpoints.read(step).tensors["theta/w"]).tolist()


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path):
    Slow.allowed.clear()
    checkpoints, array, variable = Slow(tmp_path), np.ones(2), tf.Variable([1.0, 1.0])
    with Saver(checkpoints) as saver:
        saver.save(1, {"theta/w": array, "theta/v": variable.value()}, NO_BEST)
        assert checkpoints.steps() == []
        array += 1  # the next steps
        variable.assign_add([1.0, 1.0])
        threading.Timer(0.2, Slow.allowed.set).start()
        saver.save(2, {"theta/w": array, "theta/v": variable.value()}, NO_BEST)
        assert checkpoints.steps()[0] == 1  # a save waits for the one before
    assert checkpoints.steps() == [1, 2]
    assert (_value(checkpoints, 1), _value(checkpoints, 2)) == ([1, 1], [2, 2])
    np.testing.assert_array_equal(checkpoints.read(1).tensors["theta/v"], [1, 1])


def test_what_jax_writes_over_is_copied():
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(1000.0)
    copies = HostCopies()
    copies.take({"theta/w": array + 7})
    held = copies.take({"theta/w": array})["theta/w"]
    for _ in range(3):
        array = jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    (shard,) = held.addressable_shards
    np.testing.assert_array_equal(shard.data, np.arange(1000.0))


def test_an_error_is_raised_once_by_whoever_asks_next(tmp_path, caplog):
    bad = {"theta/w": np.array(np.nan)}
    for ask in (Saver.check, Saver.wait, lambda saver: saver.save(3, {}, NO_BEST)):
        saver = Saver(Checkpointer(tmp_path))
        saver.save(1, bad, NO_BEST)
        saver._thread.join()
        with pytest.raises(FloatingPointError, match="NaN or"):
            ask(saver)
        saver.check()

    def fail():
        with Saver(Checkpointer(tmp_path)) as saver:
            saver.save(1, bad, NO_BEST)
            raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        fail()
    assert "has NaN or infinity" in caplog.text
