r"""Trains a registered model; the same command resumes an interrupted run.

lingvo-moe-train --model=tiny.MoE --data=build/demo/data --logdir=/tmp/tiny
lingvo-moe-train --model=tiny.MoE --data=build/demo/data --logdir=/tmp/tiny8 --runtime=spmd \
    --virtual_devices=8 --mesh=data:2,expert:4 \
    --set="model.moe.training=Einsum(groups=8)"    # see docs/distributed.md
"""

from pathlib import Path

from absl import flags

from lingvo_moe import api
from lingvo_moe.tools import common, rebalancing, runtimes

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to api.train."""
    rebalancing.check_flags()
    runtimes.check_flags()
    with runtimes.join_by_flags() as process:
        _train(process)


def _train(process):
    report = common.report if process.index == 0 else lambda line: None
    result = api.train(
        FLAGS.model,
        FLAGS.data,
        FLAGS.logdir,
        init_from=FLAGS.init_from,
        set=FLAGS.set,
        max_steps=FLAGS.max_steps,
        hours=FLAGS.hours,
        make_runtime=runtimes.make_runtime,
        report=report,
        process=process,
        record_loads=None if FLAGS.record_loads is None else Path(FLAGS.record_loads),
        make_scheduler=rebalancing.make_scheduler if FLAGS.hardware else None,
        input_workers=FLAGS.input_workers,
    )
    report(f"Done at step {result.step}; {result.best}.")


def run() -> None:
    """The console script."""
    flags.DEFINE_string("model", None, common.MODEL_HELP, required=True)
    flags.DEFINE_string("data", None, "Directory made by lingvo-moe-prepare.", required=True)
    flags.DEFINE_string(
        "logdir", None, "Directory for checkpoints and TensorBoard events.", required=True
    )
    flags.DEFINE_string(
        "init_from",
        None,
        "Source of the weights of a new logdir: another logdir, or an export with weights.",
    )
    flags.DEFINE_integer("max_steps", None, "Short for --set=train.max_steps=…", lower_bound=1)
    flags.DEFINE_float(
        "hours",
        None,
        "Length of the run, instead of --max_steps: the first steps are measured.",
        lower_bound=0.001,
    )
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    flags.DEFINE_string(
        "record_loads", None, "File to record the loads of experts in, for experiments/placement."
    )
    common.define_input_workers()
    rebalancing.define_flags()
    runtimes.define_flags()
    runtimes.define_process_flags()
    common.run(main)


if __name__ == "__main__":
    run()
