r"""Scores a trained model: BLEU, chrF++ and ΔBLEU per language pair; table, JSON, plot, HTML.

lingvo-moe-evaluate --model=tiny.MoE --logdir=build/demo/models/tiny.MoE --data=build/demo/data \
    --baselines=build/demo/baselines --output=build/demo/report
"""

from pathlib import Path

from absl import flags

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.tasks.evaluation import load_translator, translate_split
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common, runtimes

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to translate_split and write_report."""
    del argv
    dataset = Dataset.load(Path(FLAGS.data))
    model_dir = ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set)
    model_dir.check_dataset(dataset)
    pairs = [dataset.pair(name).name for name in FLAGS.pairs] or model_dir.pairs
    translator, step = load_translator(model_dir, runtimes.make_runtime(model_dir.task), FLAGS.step)
    outputs = translate_split(
        [(name, translator) for name in pairs], dataset, FLAGS.split, common.report
    )
    report = write_report(
        outputs,
        Path(FLAGS.output),
        model=model_dir.model,
        checkpoint_step=step,
        split=FLAGS.split,
        baselines=Path(FLAGS.baselines) if FLAGS.baselines else None,
    )
    print(format_table(report))
    common.report(f"Report: {FLAGS.output}/index.html")


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("data", None, "Directory made by lingvo-moe-prepare.", required=True)
    flags.DEFINE_string("output", None, "Where the report goes.", required=True)
    flags.DEFINE_string("model", None, "Check that the logdir is of this model.")
    flags.DEFINE_enum("split", "test", ["dev", "test"], "What to translate.")
    flags.DEFINE_list("pairs", [], "Pairs to score, such as de-en,fr-en; by default all.")
    flags.DEFINE_string("baselines", None, "A report to compare with: its directory or its JSON.")
    flags.DEFINE_integer("step", None, "Which checkpoint; by default the best on dev.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    runtimes.define_flags()
    common.run(main)


if __name__ == "__main__":
    run()
