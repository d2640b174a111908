r"""Shows which language pairs use which experts, and how even the load is.

lingvo-moe-experts --logdir=build/demo/models/tiny.MoE
lingvo-moe-experts --logdir=models/nllb --data=data    # counts the tokens of each expert first
"""

from pathlib import Path

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.experts import analyze, layers_table, pairs_table
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.jobs.evaluation import record_routing
from lingvo_moe.runtimes.local import Local
from lingvo_moe.system.lines import first_of
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("logdir", str, None, "Directory of a trained model.", required=True),
    Flag("data", str, None,
         "Directory of prepared data, to count how many of its tokens choose each expert. The "
         "counts of dev are also written to LOGDIR/routing.npz, if the data have all pairs of "
         "the model. Without this flag the counts "
         "in that file are used; each evaluation during training writes them."),
    Flag("split", ("dev", "test"), "dev", "Which lines of --data to count."),
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to the tables of evaluation.experts."""
    common.check_effect("with --data", FLAGS.data is not None, "split")
    model_dir = ModelDir.open(Path(FLAGS.logdir))
    if not model_dir.task.moe_layers:
        raise ValueError(
            f"Logdir {FLAGS.logdir} is of {model_dir.model}, a dense model: it has no experts. "
            f"Give the logdir of a Mixture-of-Experts model."
        )
    data = Dataset.load(Path(FLAGS.data)) if FLAGS.data else None
    if data:
        record = record_routing(model_dir, data, Local, FLAGS.split)
    else:
        record = RoutingRecord.load(model_dir.routing_path)
    layers = analyze(record)
    print(layers_table(layers).to_text())
    print(f"\n{pairs_table(layers, record.pairs).to_text()}")
    if data and FLAGS.split == "dev":  # pruning reads the counts of dev
        _save(record, model_dir, data)


def _save(record: RoutingRecord, model_dir: ModelDir, data: Dataset) -> None:
    here = {pair.name for pair in data.pairs}
    if missing := [pair for pair in model_dir.scored_pairs if pair not in here]:
        common.report(
            f"{model_dir.routing_path} stays: --data has no lines of {first_of(missing)}, "
            f"whose counts would be lost."
        )
        return
    record.save(model_dir.routing_path)
    common.report(f"Wrote the counts of the experts: {model_dir.routing_path}")


if __name__ == "__main__":
    main()
