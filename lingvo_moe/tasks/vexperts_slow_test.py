"""A translation model whose experts move while it trains, end to end."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.rates import ExpertShape, from_hardware
from lingvo_moe.flexmoe.scheduler import Scheduler
from lingvo_moe.hardware.chips import find_hardware
from lingvo_moe.jobs.training import train_model
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK

pytestmark = pytest.mark.slow

SMALL = (
    *SHRINK,
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.moe.every_n=1",
    "model.moe.training=Gather(groups=2, capacity_factor=None)",
    "train.log_every=2",
    "train.eval_every=4",
    "train.checkpoint_every=2",
)
DISPATCHER = "model.moe.training=VExperts(devices=2, slots_per_device=6, groups=2, factors=(8.0,))"


def scheduler(task):
    """Small experts, and a threshold that random loads are above."""
    expert = ExpertShape(model_dim=16, hidden_dim=32)
    cost = from_hardware(find_hardware("h100"), task.params.model.moe.training.devices, expert)
    return Scheduler(maker=PolicyMaker(cost=cost, horizon=1e6), threshold=1.01, release=1.0)


def run(logdir, *overrides, **options):
    return train_model(training_job(logdir, *SMALL, *overrides, **options))


def scalars(logdir):
    """Tag -> its values, from the events of all runs in a logdir."""
    found = collections.defaultdict(list)
    for path in (logdir / "events").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag].append(value.simple_value)
    return found


def weights(logdir):
    tensors = ModelDir.open(logdir).checkpoints.read(4).tensors
    return {name: np.asarray(tensors[name]) for name in tensors if name.startswith("theta/")}


def test_moving_and_resuming_change_nothing_that_is_learnt(tmp_path):
    expected = run(tmp_path / "still", "model.moe.training=Ragged(groups=2)", "train.max_steps=4")
    for steps in (2, 4):
        options = (DISPATCHER, f"train.max_steps={steps}")
        result = run(tmp_path / "moving", *options, make_scheduler=scheduler)
    seen = scalars(tmp_path / "moving")
    layers = [f"{side}/layer_00" for side in ("encoder", "decoder")]
    assert sum(sum(seen[f"train/moves/{layer}"]) for layer in layers) > 0
    assert min(seen[f"train/balance_ratio/{layers[0]}"]) >= 1
    assert {"train/rung", "train/retries", f"train/move_seconds/{layers[1]}"} <= set(seen)
    assert result.best_loss == pytest.approx(expected.best_loss, rel=1e-5)
    still, moving = weights(tmp_path / "still"), weights(tmp_path / "moving")
    for name, value in still.items():
        found = moving[name]
        if "/experts/" in name:
            table = moving[name.partition("/experts/")[0] + "/placement"].ravel()
            found = found[[int(np.argmax(table == expert)) for expert in range(8)]]
        np.testing.assert_allclose(found, value, rtol=1e-3, atol=1e-5, err_msg=name)
