"""Replays expert loads under policies of expert placement: time, balance, dropped tokens.

python -m experiments.placement --synthetic --devices=64 --hardware=a100
python -m experiments.placement --trace=FILE --devices=8 [--choices=16384]
"""

from pathlib import Path
from typing import Any

from absl import flags

from experiments.placement.loads import SyntheticLoads, on_devices, scaled
from experiments.placement.simulate import COMPARISONS, replay_trace, summarize_replay, table
from experiments.placement.traces import Trace
from experiments.tables import write_csv
from lingvo_moe.flexmoe.rates import ExpertShape, from_hardware
from lingvo_moe.hardware.chips import NAMES, find_hardware
from lingvo_moe.tools import common
from lingvo_moe.tools.common import Flag

FLAGS = flags.FLAGS
TABLE = (
    Flag("trace", str, None, "An .npz file of recorded expert loads."),
    Flag("synthetic", bool, False, "Generate loads: top 10 experts take 75 %, with drift."),
    Flag("compare", tuple(COMPARISONS), "policies",
         "All policies; or triggers, searches or averages of the flexible one."),
    Flag("output", str, None, "A .csv file to write."),
    Flag("devices", int, None, "Number of devices; by default that of --trace, or 64."),
    Flag("choices", float, None, "With --trace: mean choices of a device, step and layer."),
    Flag("slots", int, 4, "Slots of a device; each holds one replica of an expert."),
    Flag("hardware", str, "a100", f"The kind of device: {NAMES}."),
    Flag("skip", int, 20, "Number of first steps to leave out of averages."),
    Flag("experts", int, 64, "With --synthetic: number of experts."),
    Flag("steps", int, 300, "With --synthetic: number of steps."),
    Flag("layers", int, 1, "With --synthetic: number of MoE layers, independent loads."),
    Flag("tokens", int, 8192,
         "With --synthetic: tokens per device and step; each chooses two experts."),
    Flag("seed", int, 0, "With --synthetic: seed of the loads."),
)  # fmt: skip


def _trace() -> Trace:
    if bool(FLAGS.trace) == FLAGS.synthetic:
        raise ValueError("Give either --trace=FILE or --synthetic.")
    if FLAGS.trace:
        trace = Trace.load(Path(FLAGS.trace))
        trace = on_devices(trace, FLAGS.devices or trace.num_devices)
        return scaled(trace, FLAGS.choices) if FLAGS.choices else trace
    names = ("experts", "steps", "layers", "tokens", "seed")
    sizes: dict[str, Any] = {name: FLAGS[name].value for name in names}
    return SyntheticLoads(devices=FLAGS.devices or 64, **sizes).generate()


@common.tool(TABLE)
def main() -> None:
    """Prints and writes the table."""
    trace, runs = _trace(), []
    cost = from_hardware(find_hardware(FLAGS.hardware), trace.num_devices, ExpertShape())
    for policy in COMPARISONS[FLAGS.compare]:
        runs.append(summarize_replay(replay_trace(trace, policy, cost, FLAGS.slots), FLAGS.skip))
        common.report(f"{runs[-1].policy}: {1e3 * runs[-1].step_seconds:.2f} ms per step")
    found = table(runs)
    print(found.to_markdown())
    if FLAGS.output:
        write_csv(Path(FLAGS.output), found)


if __name__ == "__main__":
    main()
