r"""Trains and scores a bilingual baseline for each pair; the same command resumes.

lingvo-moe-baselines --model=tiny.Bilingual --data=build/demo/data --output=build/demo/baselines
"""

import sys
from pathlib import Path

from absl import flags

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.evaluation import baseline_translators, translate_split
from lingvo_moe.tasks.training import TrainingJob, train_baselines
from lingvo_moe.tools import common
from lingvo_moe.training.signals import exit_code

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to train_baselines and write_report."""
    del argv
    dataset = Dataset.load(Path(FLAGS.data))
    output = Path(FLAGS.output)
    pairs = [dataset.pair(name).name for name in FLAGS.pairs] or [p.name for p in dataset.pairs]
    job = TrainingJob(
        model=FLAGS.model,
        overrides=FLAGS.set,
        dataset=dataset,
        logdir=output,
        make_runtime=Local,
        report=common.report,
    )
    if signal := train_baselines(job, pairs):
        sys.exit(exit_code(signal))
    outputs = translate_split(
        baseline_translators(output, pairs, Local),
        dataset,
        FLAGS.split,
        common.report,
    )
    report = write_report(
        outputs, output, model=FLAGS.model, checkpoint_step=None, split=FLAGS.split, baselines=None
    )
    print(format_table(report))


def run() -> None:
    """The console script."""
    flags.DEFINE_string("model", None, common.MODEL_HELP, required=True)
    flags.DEFINE_string("data", None, "Directory made by lingvo-moe-prepare.", required=True)
    flags.DEFINE_string(
        "output", None, "Directory for a logdir of each pair, and the report.", required=True
    )
    flags.DEFINE_enum("split", "test", ["dev", "test"], "Split to score the baselines on.")
    flags.DEFINE_list("pairs", [], "Pairs to train, such as de-en,fr-en; by default all.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
