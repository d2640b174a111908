r"""Shows which languages use which experts: load, similarity of languages.

lingvo-moe-experts --logdir=build/demo/models/tiny.MoE
lingvo-moe-experts --logdir=models/nllb --data=data    # counts the tokens of each expert first
"""

from pathlib import Path

from absl import flags

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.experts import analyze
from lingvo_moe.evaluation.experts_page import format_experts, write_experts
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.jobs.evaluation import record_routing
from lingvo_moe.reporting.page import PAGE_FILE
from lingvo_moe.runtimes.local import Local
from lingvo_moe.system.files import check_output, new_directory
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common
from lingvo_moe.tools.common import Flag

FLAGS = flags.FLAGS
MAKER = "lingvo-moe-experts"
TABLE = (
    Flag("logdir", str, None, "Directory of a trained model.", required=True),
    Flag("data", str, None,
         "Directory of prepared data, to count how many of its tokens choose each expert. The "
         "counts of dev are also written to LOGDIR/routing.npz. Without this flag the counts "
         "in that file are used; each evaluation during training writes them."),
    Flag("split", ("dev", "test"), "dev", "Which lines of --data to count."),
    Flag("output", str, None,
         "Directory for the page; by default LOGDIR/experts, replaced each time."),
    common.OVERWRITE,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to analyze and write_experts."""
    common.check_effect("with --data", FLAGS.data is not None, "split")
    model_dir = ModelDir.open(Path(FLAGS.logdir))
    output = Path(FLAGS.output) if FLAGS.output else model_dir.path / "experts"
    overwrite = FLAGS.overwrite or not FLAGS.output
    if not model_dir.task.moe_layers:
        raise ValueError(
            f"Logdir {FLAGS.logdir} is of {model_dir.model}, a dense model: it has no experts. "
            f"Give the logdir of a Mixture-of-Experts model."
        )
    check_output(output, MAKER, overwrite)
    experts = analyze(_record(model_dir))
    with new_directory(output, MAKER, overwrite) as directory:
        write_experts(experts, directory, model_dir.model, FLAGS.split)
    print(format_experts(experts))
    common.report(f"Page: {output / PAGE_FILE}")


def _record(model_dir: ModelDir) -> RoutingRecord:
    if not FLAGS.data:
        return RoutingRecord.load(model_dir.routing_path)
    record = record_routing(model_dir, Dataset.load(Path(FLAGS.data)), Local, FLAGS.split)
    if FLAGS.split == "dev":  # pruning reads the counts of dev
        record.save(model_dir.routing_path)
        common.report(f"Wrote the counts of the experts: {model_dir.routing_path}")
    return record


if __name__ == "__main__":
    main()
