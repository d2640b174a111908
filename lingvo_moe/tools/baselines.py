r"""Trains and scores a bilingual baseline for each pair; the same command resumes.

lingvo-moe-baselines --model=tiny.Bilingual --data=build/demo/data --output=build/demo/baselines
"""

from lingvo_moe import api
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, NAMES, Flag

TABLE = (
    Flag("model", list, None,
         f"{common.MODEL_HELP} May be repeated: each pair gets the model that is best on dev.",
         required=True),
    Flag("data", str, None, "Directory made by lingvo-moe-prepare.", required=True),
    Flag("output", str, None, "Directory for a logdir of each pair, and the report.",
         required=True),
    Flag("split", ("dev", "test"), "test", "Split to score the baselines on."),
    Flag("own_vocabulary", bool, False,
         "Train a vocabulary of the model's size on each pair's text; else that of --data is "
         "used."),
    Flag("pairs", NAMES, None, "Pairs to train, such as de-en,fr-en; by default all."),
    common.SET,
)  # fmt: skip


@common.tool(TABLE)
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
        report=common.report,
    )
    print(format_table(report))
    common.report(f"Report: {FLAGS.output}/report/index.html")


if __name__ == "__main__":
    main()
