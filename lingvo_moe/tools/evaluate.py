r"""Scores a trained model: BLEU, chrF++ and ΔBLEU per language pair; table, JSON, plot, HTML.

lingvo-moe-evaluate --model=tiny.MoE --logdir=build/demo/models/tiny.MoE --data=build/demo/data \
    --baselines=build/demo/baselines --output=build/demo/report
"""

from pathlib import Path

from absl import flags

from lingvo_moe import api
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common, runtimes

FLAGS = flags.FLAGS


def main() -> None:
    """Flags to api.evaluate."""
    runtimes.check_flags()
    report = api.evaluate(
        ModelDir.open(Path(FLAGS.logdir), FLAGS.model).with_overrides(FLAGS.set),
        FLAGS.data,
        output=FLAGS.output,
        baselines=FLAGS.baselines,
        step=FLAGS.step,
        make_runtime=runtimes.make_runtime,
        report=common.report,
        split=FLAGS.split,
        pairs=FLAGS.pairs,
        bleu_tokenizers=FLAGS.bleu_tokenizer,
        pivot=FLAGS.pivot,
        floor=FLAGS.floor,
        metrics=FLAGS.metric,
        overwrite=FLAGS.overwrite,
    )
    print(format_table(report))
    common.report(f"Report: {FLAGS.output}/index.html")


def run() -> None:
    """The console script."""
    flags.DEFINE_string("logdir", None, "Directory of a trained model.", required=True)
    flags.DEFINE_string("data", None, "Directory made by lingvo-moe-prepare.", required=True)
    flags.DEFINE_string("output", None, "Directory for the report.", required=True)
    flags.DEFINE_string("model", None, "Check that the logdir is of this model.")
    flags.DEFINE_enum("split", "test", ["dev", "test"], "Split to translate and score.")
    common.define_names("pairs", "Pairs to score, such as de-en,fr-en; by default all.")
    flags.DEFINE_multi_string(
        "baselines",
        [],
        "A report to compare with: its directory or its JSON. May be repeated; each pair is "
        "compared with the first report that has it.",
    )
    flags.DEFINE_multi_string(
        "bleu_tokenizer",
        [],
        "PAIR=NAME, such as en-zh=char: the sacreBLEU tokenizer of a pair. May be repeated.",
    )
    flags.DEFINE_string(
        "pivot",
        None,
        "Language such as en: pairs that were not trained on are translated through it.",
    )
    flags.DEFINE_bool(
        "floor", False, "Also score the targets of the most similar training sentences."
    )
    flags.DEFINE_multi_string(
        "metric",
        [],
        "A further score, such as \"SpBleu(model='flores200.model')\" or Comet. May be repeated.",
    )
    flags.DEFINE_bool("overwrite", False, common.OVERWRITE_HELP)
    flags.DEFINE_integer("step", None, "Step of the checkpoint; by default the best on dev.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    runtimes.define_flags()
    common.run(main)


if __name__ == "__main__":
    run()
