import numpy as np

from lingvo_moe.training.averaging import averaged

TENSORS = {
    "step": np.array(3),
    "theta/a/w": np.array([1.0, 2.0], np.float32),
    "theta/a/placement": np.array([0, 1], np.int32),
    "slots/a/w/mean": np.array([9.0, 9.0], np.float32),
    "slots/a/w/ema": np.array([3.0, 4.0], np.float32),
}


def test_the_moving_average_replaces_the_weights_that_have_one():
    used = averaged(TENSORS)
    np.testing.assert_array_equal(used["theta/a/w"], [3, 4])
    np.testing.assert_array_equal(used["theta/a/placement"], [0, 1])
    without = {n: t for n, t in TENSORS.items() if not n.endswith("ema")}
    assert averaged(without) == without
