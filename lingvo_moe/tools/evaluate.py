r"""Scores a trained model: BLEU, chrF++ and ΔBLEU per language pair; table, JSON, plot, HTML.

lingvo-moe-evaluate --model=tiny.MoE --logdir=build/demo/models/tiny.MoE --data=build/demo/data \
    --baselines=build/demo/baselines --output=build/demo/report
"""

from pathlib import Path

from lingvo_moe import api
from lingvo_moe.evaluation.report import format_table
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common, runtimes
from lingvo_moe.tools.common import FLAGS, NAMES, Flag

TABLE = (
    Flag("logdir", str, None, "Directory of a trained model.", required=True),
    Flag("data", str, None, "Directory made by lingvo-moe-prepare.", required=True),
    Flag("output", str, None, "Directory for the report.", required=True),
    common.CHECKED_MODEL,
    Flag("split", ("dev", "test"), "test", "Split to translate and score."),
    Flag("pairs", NAMES, None, "Pairs to score, such as de-en,fr-en; by default all."),
    Flag("baselines", list, [],
         "The directory of a report to compare with. May be repeated; each pair is "
         "compared with the first report that has it."),
    Flag("bleu_tokenizer", list, [],
         "PAIR=NAME, such as en-zh=char: the sacreBLEU tokenizer of a pair. May be repeated."),
    Flag("pivot", str, None,
         "Language such as en: pairs that were not trained on are translated through it."),
    Flag("floor", bool, False, "Also score the targets of the most similar training sentences."),
    Flag("metric", list, [],
         "A further score, such as \"SpBleu(model='flores200.model')\". May be repeated."),
    common.OVERWRITE,
    common.STEP,
    common.SET,
    *runtimes.TABLE,
)  # fmt: skip


@common.tool(TABLE)
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


if __name__ == "__main__":
    main()
