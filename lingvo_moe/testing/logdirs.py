"""Makes small logdirs of tiny.MoE on the tiny dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.jobs.training import TrainingJob, train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.tiny_world import SHRINK, dataset

# One layer a side, and params for which an untrained model gives translations of some length.
SMALLEST = (
    *SHRINK,
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.moe.every_n=1",
    "decoding.length_ratio=0.5",
    "decoding.length_penalty=5.0",
)

SMALLEST_DENSE = tuple(text for text in SMALLEST if "moe" not in text)  # of tiny.Dense


def training_job(logdir: Path, *overrides: str, **fields: Any) -> TrainingJob:
    """A run of one step on one device; `--set` texts and fields of the job may change that."""
    given: dict[str, Any] = {
        "model": "tiny.MoE",
        "overrides": [*SHRINK, "train.max_steps=1", *overrides],
        "dataset": dataset(),
        "make_runtime": Local,
        "report": lambda line: None,
    }
    return TrainingJob(logdir=logdir, **(given | fields))


def random_logdir(path: Path, overrides: Sequence[str]) -> ModelDir:
    """A logdir whose one checkpoint, of step 1, holds weights drawn at random."""
    made = ModelDir.create(path, "tiny.MoE", overrides, dataset())
    runtime = Local(made.task, train_step(made.task))
    runtime.initialize(5)
    made.checkpoints.save(1, runtime.state())
    return made
