r"""Trains a registered model; the same command resumes an interrupted run.

lingvo-moe-train --model=tiny.MoE --data=build/demo/data --logdir=/tmp/tiny
lingvo-moe-train --model=tiny.MoE --data=build/demo/data --logdir=/tmp/tiny8 --runtime=spmd \
    --virtual_devices=8 --mesh=data:2,expert:4 \
    --set="model.moe.training=Einsum(groups=8)"
"""

from lingvo_moe import api
from lingvo_moe.tools import common, rebalancing, runtimes
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("model", str, None, common.MODEL_HELP, required=True),
    Flag("data", str, None, "Directory made by lingvo-moe-prepare.", required=True),
    Flag("logdir", str, None, "Directory for checkpoints and TensorBoard events.", required=True),
    Flag("init_from", str, None,
         "Source of the weights of a new logdir: another logdir, or an export with weights."),
    Flag("max_steps", int, None, "Short for --set=train.max_steps=…", least=1),
    Flag("hours", float, None,
         "Length of the run, instead of --max_steps: the first steps are measured. That, compiling "
         "and the length penalty take some minutes more.", least=0.001),
    common.SET,
    *rebalancing.TABLE,
    *runtimes.TABLE,
    *runtimes.PROCESS_TABLE,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to api.train."""
    runtimes.check_flags()
    with runtimes.join_by_flags() as process:
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
            make_scheduler=rebalancing.make_scheduler if FLAGS.hardware else None,
        )
        report(f"Done at step {result.step}; {result.best}.")


if __name__ == "__main__":
    main()
