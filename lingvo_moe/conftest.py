"""Fixtures that tests of several packages share."""

import os
from pathlib import Path

import pytest

# Programs that run once are not worth optimizing. XLA reads this when TensorFlow is first used.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A logdir of tiny.MoE after one step; a test that changes it must copy it first."""
    from lingvo_moe.tasks.training import train_model
    from lingvo_moe.testing.logdirs import training_job

    path = tmp_path_factory.mktemp("trained") / "logdir"
    train_model(training_job(path))
    return path
