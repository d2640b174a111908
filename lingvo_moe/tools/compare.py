r"""Compares settings: trains each over several seeds, and prints one table.

lingvo-moe-compare --data=build/demo/data --output=/tmp/routings --seed=1 --seed=2 \
    --row='top-2: tiny.MoE' --row='top-1: tiny.MoE; model.moe.gating=Switch()' \
    --set=train.max_steps=300

A row is 'NAME: MODEL; PARAM=VALUE; …'. The same command goes on after an interruption; further
rows and seeds are added to the table.
"""

from pathlib import Path

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.jobs.compare import Setting, compare, compare_table
from lingvo_moe.tools import common, runtimes
from lingvo_moe.tools.common import FLAGS, Flag

TABLE = (
    Flag("data", str, None, "Directory made by lingvo-moe-prepare.", required=True),
    Flag("output", str, None, "Directory for the runs and compare.json.", required=True),
    Flag("row", list, None, "'NAME: MODEL; PARAM=VALUE; …'. May be repeated.", required=True),
    Flag("seed", list, ["1"], "A value of train.seed. May be repeated."),
    Flag("split", ("dev", "test", "none"), "dev", "Split to translate and score."),
    common.SET,
    *runtimes.TABLE,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to compare."""
    runtimes.check_flags()
    if wrong := [seed for seed in FLAGS.seed if not seed.isdecimal()]:
        raise ValueError(f"--seed={wrong[0]} is not a number from 0; give one.")
    runs = compare(
        [Setting.parse(text) for text in FLAGS.row],
        Dataset.load(Path(FLAGS.data)),
        Path(FLAGS.output),
        [int(seed) for seed in FLAGS.seed],
        FLAGS.set,
        runtimes.make_runtime,
        common.report,
        split=None if FLAGS.split == "none" else FLAGS.split,
    )
    print(compare_table(runs).to_text())


if __name__ == "__main__":
    main()
