"""A job of two processes goes on in one after a failure, and then in two again."""

import re

import numpy as np
import pytest

from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import jobs as training
from lingvo_moe.testing.forks import wait_for_all

pytestmark = pytest.mark.slow

TWO = {"mesh": "expert:2", "processes": 2}
STEPS = 16
TOLERANCE = 1e-4  # of weights: sums in another order


def losses(printed):
    """Step -> its loss, from the lines of a run."""
    return {
        int(k): float(v) for k, v in re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", printed, re.M)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(losses, final checkpoint) of two processes that are not interrupted."""
    logdir = tmp_path_factory.mktemp("whole")
    printed = training.finish(training.start(logdir, STEPS, **TWO))
    return losses(printed), training.tensors(logdir, STEPS)


@pytest.mark.parametrize(
    ("one", "equal"),
    [({"mesh": "expert:1"}, False), ({"mesh": "expert:2", "devices": 2}, True)],
    ids=["half of the devices", "all devices on one host"],
)
def test_a_job_goes_on_in_one_process_and_then_in_two(tmp_path, whole, one, equal):
    expected_losses, expected = whole
    failing = training.start(tmp_path, STEPS, **TWO)
    training.wait_for(failing, "step 7/")
    failing[1].kill()
    ended = wait_for_all(failing)
    assert "ended without an error message" in ended[0].stderr
    (newest,) = ModelDir.open(tmp_path).checkpoints.steps()[-1:]
    found = losses(ended[0].stderr)

    for resumed, steps, job in ((newest, newest + 4, one), (newest + 4, STEPS, TWO)):
        printed = training.finish(training.start(tmp_path, steps, **job))
        assert f"Resuming from step {resumed}." in printed
        found |= losses(printed)
    # The same batches: every loss, and the position of the input.
    assert found.keys() == expected_losses.keys()
    for step, loss in expected_losses.items():
        assert found[step] == pytest.approx(loss, abs=0.002), step
    ours = training.tensors(tmp_path, STEPS)
    for name in (name for name in expected if name.startswith("input/")):
        np.testing.assert_array_equal(ours[name], expected[name], err_msg=name)
    if equal:
        training.assert_same_bits(ours, expected)
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, atol=TOLERANCE, err_msg=name)
