r"""Trains and scores a bilingual baseline for each pair; the same command resumes.

lingvo-moe-baselines --model=tiny.Bilingual --data=build/demo/data --output=build/demo/baselines
"""

from absl import flags

from lingvo_moe import api
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to api.train_baselines."""
    report = api.train_baselines(
        FLAGS.model,
        FLAGS.data,
        FLAGS.output,
        pairs=FLAGS.pairs,
        split=FLAGS.split,
        own_vocabulary=FLAGS.own_vocabulary,
        set=FLAGS.set,
        input_workers=FLAGS.input_workers,
        report=common.report,
    )
    print(format_table(report))
    common.report(f"Report: {FLAGS.output}/report/index.html")


def run() -> None:
    """The console script."""
    flags.DEFINE_multi_string(
        "model",
        None,
        f"{common.MODEL_HELP} May be repeated: each pair gets the model that is best on dev.",
        required=True,
    )
    flags.DEFINE_string("data", None, "Directory made by lingvo-moe-prepare.", required=True)
    flags.DEFINE_string(
        "output", None, "Directory for a logdir of each pair, and the report.", required=True
    )
    flags.DEFINE_enum("split", "test", ["dev", "test"], "Split to score the baselines on.")
    flags.DEFINE_bool(
        "own_vocabulary",
        False,
        "Train a vocabulary of the model's size on each pair's text; else that of --data is used.",
    )
    common.define_names("pairs", "Pairs to train, such as de-en,fr-en; by default all.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.define_input_workers()
    common.run(main)


if __name__ == "__main__":
    run()
