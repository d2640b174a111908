import numpy as np
import pytest

from lingvo_moe.training.averaging import Ema, Last, Raw

TENSORS = {
    "step": np.array(3),
    "theta/a/w": np.array([1.0, 2.0], np.float32),
    "theta/a/placement": np.array([0, 1], np.int32),
    "slots/a/w/mean": np.array([9.0, 9.0], np.float32),
    "slots/a/w/ema": np.array([3.0, 4.0], np.float32),
}


def test_the_moving_average_replaces_the_weights_that_have_one():
    used = Ema()([TENSORS])
    np.testing.assert_array_equal(used["theta/a/w"], [3, 4])
    np.testing.assert_array_equal(used["theta/a/placement"], [0, 1])
    without = {n: t for n, t in TENSORS.items() if not n.endswith("ema")}
    assert Ema()([without]) is without
    assert Raw()([TENSORS]) is TENSORS


def test_the_mean_of_the_last_checkpoints():
    last = Last(3)
    assert last.steps([1, 2, 5, 9, 12], 9) == [2, 5, 9]
    with pytest.raises(ValueError, match="needs 3"):
        last.steps([1, 2, 5], 2)
    weights = [[1.0, 2.0], [4.0, 2.0], [4.0, 5.0]]
    used = last([TENSORS | {"theta/a/w": np.array(w, np.float32)} for w in weights])
    assert used["theta/a/w"].shape == (2,)
    np.testing.assert_array_equal(used["theta/a/w"], [3, 3])
    np.testing.assert_array_equal(used["theta/a/w"][1:], [3])
    assert int(used["step"]) == 3
    moved = TENSORS | {"theta/a/placement": np.array([1, 0], np.int32)}
    with pytest.raises(ValueError, match="experts moved"):
        last([TENSORS, moved, TENSORS])
