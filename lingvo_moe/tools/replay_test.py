import re

import numpy as np
import pytest

from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_model
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.training.recovery import NotFiniteError

HUGE = "theta/encoder/layer_01/feed_forward/experts/wo"


class Broken(Local):
    """Restores checkpoints with a huge weight, so that no step is finite."""

    def restore(self, tensors):
        super().restore({**tensors, HUGE: np.full(tensors[HUGE].shape, 3e38, np.float32)})


@pytest.mark.slow
def test_the_layer_and_the_line_of_the_first_operation_that_is_not_finite(tmp_path):
    logdir = tmp_path / "logdir"
    train_model(training_job(logdir))
    assert "has no step to repeat" in error_of("replay", f"--logdir={logdir}")
    limits = ("train.max_steps=9", "train.skip_limit=1", "train.most_returns=0")
    with pytest.raises(NotFiniteError, match=r"at step 2.* not finite in the gradients of \d+ of"):
        train_model(training_job(logdir, *limits, "train.log_every=1", make_runtime=Broken))
    assert ModelDir.open(logdir).checkpoints.steps() == [1]
    result = succeed("replay", f"--logdir={logdir}")
    assert result.stderr.startswith("Replaying step 2, saved in ")
    assert re.search(
        r" has \+Inf values, computed in .*lingvo_moe/layers/feed_forward\.py:\d+; ", result.stdout
    )
    assert "; its inputs: encoder/layer_01/Relu:0" in result.stdout
