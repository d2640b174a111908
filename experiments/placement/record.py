r"""Records the loads of experts while a model trains, for --trace of experiments.placement.

python -m experiments.placement.record --model=tiny.MoE --data=build/demo/data --steps=200 \
    --output=loads.npz --set="model.moe.training=Einsum(groups=8)"
"""

import dataclasses
from pathlib import Path

import numpy as np
from absl import flags

from experiments.placement.traces import Trace
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import TrainInput
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common
from lingvo_moe.tools.common import Flag

FLAGS = flags.FLAGS
TABLE = (
    Flag("model", str, None, common.MODEL_HELP, required=True),
    Flag("data", str, None, "Directory made by lingvo-moe-prepare.", required=True),
    Flag("output", str, None, "The .npz file to write.", required=True),
    Flag("steps", int, 200, "Number of steps, from the first.", least=1),
    common.SET,
)  # fmt: skip


def record(model_dir: ModelDir, dataset: Dataset, steps: int) -> Trace:
    """The loads of the first steps of a run; the source devices are the groups of tokens."""
    task = dataclasses.replace(model_dir.task, group_loads=True)
    params, runtime = task.params, Local(task, train_step(task))
    runtime.initialize(params.train.seed)
    source = TrainInput(dataset, params.input, params.train.seed)
    loads = [np.rint(runtime.train(source.next_batch()).group_load) for _ in range(steps)]
    return Trace(
        loads=np.array(loads, np.int32),
        steps=np.arange(1, steps + 1),
        layers=tuple(task.moe_layers),
        experts=tuple(task.layer_experts),
    )


@common.tool(TABLE)
def main() -> None:
    """Flags to `record`."""
    dataset = Dataset.load(Path(FLAGS.data))
    unused = Path(FLAGS.output).with_suffix(".logdir")  # nothing is written there
    model_dir = ModelDir.for_training(unused, FLAGS.model, FLAGS.set, dataset)
    record(model_dir, dataset, FLAGS.steps).save(Path(FLAGS.output))


if __name__ == "__main__":
    main()
