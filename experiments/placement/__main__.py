r"""Replays expert loads under policies of expert placement: time, balance, dropped tokens.

python -m experiments.placement --synthetic --devices=64 --hardware=a100
python -m experiments.placement --trace=FILE --devices=8 --output=build/placement
"""

import dataclasses
import itertools
import math
from pathlib import Path

from absl import flags

from experiments.placement.loads import SyntheticLoads, on_devices, scaled
from experiments.placement.report import Comparison
from experiments.placement.simulate import (
    POLICIES,
    TRIGGERS,
    check_skip,
    replay_all,
    summarize_replay,
)
from lingvo_moe.core.files import check_file, check_output, new_directory
from lingvo_moe.hardware.chips import NAMES, Efficiency, Hardware, find_hardware
from lingvo_moe.placement.rates import EFFICIENCY, ExpertShape, efficiency_of, from_hardware
from lingvo_moe.placement.traces import Trace
from lingvo_moe.reporting.page import PAGE_FILE
from lingvo_moe.tools import common

FLAGS = flags.FLAGS
MAKER = "experiments.placement"
COMPARISONS = {"policies": POLICIES, "triggers": TRIGGERS}
_EVERY = 50  # steps between lines of progress


def _trace() -> Trace:
    if bool(FLAGS.trace) == FLAGS.synthetic:
        raise ValueError("Give either --trace=FILE or --synthetic.")
    generated = ("experts", "steps", "layers", "tokens", "seed")
    common.check_effect("with --synthetic", FLAGS.synthetic, *generated)
    common.check_effect("with --trace", not FLAGS.synthetic, "choices")
    if FLAGS.trace:
        trace = Trace.load(Path(FLAGS.trace))
        trace = on_devices(trace, trace.num_devices if FLAGS.devices is None else FLAGS.devices)
        return scaled(trace, FLAGS.choices) if FLAGS.choices is not None else trace
    least = math.ceil(SyntheticLoads.top / SyntheticLoads.top_share)
    if FLAGS.experts < least:
        raise ValueError(
            f"--experts must be at least {least} with --synthetic, got {FLAGS.experts}: "
            f"{SyntheticLoads.top} busy experts take {SyntheticLoads.top_share:.0%} of the load, "
            f"and each of the others must take less."
        )
    loads = SyntheticLoads(
        devices=64 if FLAGS.devices is None else FLAGS.devices,
        experts=FLAGS.experts,
        steps=FLAGS.steps,
        layers=FLAGS.layers,
        tokens=FLAGS.tokens,
        seed=FLAGS.seed,
    )
    return loads.generate()


def _efficiency(hardware: Hardware) -> Efficiency:
    given = {"matmul": FLAGS.matmul_efficiency, "network": FLAGS.network_efficiency}
    given = {name: share for name, share in given.items() if share is not None}
    return dataclasses.replace(efficiency_of(hardware), **given)


def _progress(policy: str, step: int, steps: int) -> None:
    if step % _EVERY == 0 or step == steps:
        common.report(f"{policy}: step {step}/{steps}")


def main() -> None:
    """Flags to replay_all and a report."""
    if not 0 <= FLAGS.other_ms < math.inf:
        raise ValueError(f"--other_ms must be 0 or more, got {FLAGS.other_ms}.")
    if FLAGS.output is not None:
        check_output(Path(FLAGS.output), MAKER, FLAGS.overwrite)
    if FLAGS.save_trace is not None:
        check_file(Path(FLAGS.save_trace))
    trace = _trace()
    check_skip(FLAGS.skip, len(trace.steps))
    hardware = find_hardware(FLAGS.hardware)
    numbers = sorted({*trace.layer_experts})
    experts = numbers[-1]
    if FLAGS.slots * trace.num_devices < experts:
        raise ValueError(
            f"{experts} experts need as many slots, and {trace.num_devices} devices with "
            f"--slots={FLAGS.slots} have {FLAGS.slots * trace.num_devices}. Raise --slots to at "
            f"least {math.ceil(experts / trace.num_devices)}, or --devices."
        )
    expert = ExpertShape(model_dim=FLAGS.model_dim, hidden_dim=FLAGS.hidden_dim, dtype=FLAGS.dtype)
    cost = from_hardware(hardware, trace.num_devices, expert, _efficiency(hardware))
    policies = COMPARISONS[FLAGS.compare]
    for policy, number in itertools.product(policies, numbers):
        policy.start(cost, FLAGS.slots, number)  # errors must come before a long replay
    if FLAGS.save_trace is not None:
        trace.save(Path(FLAGS.save_trace))
    runs = replay_all(trace, cost, FLAGS.slots, policies, _progress)
    settings = {
        "trace": FLAGS.trace or f"synthetic, seed {FLAGS.seed}",
        "steps": len(trace.steps),
        "layers": len(trace.layers),
        "experts": experts if len(numbers) == 1 else ", ".join(map(str, numbers)),
        "devices": trace.num_devices,
        "choices of a device and step": round(float(trace.loads.sum(axis=3).mean())),
        "hardware": FLAGS.hardware,
        "slots of a device": FLAGS.slots,
        "expert": f"{expert.model_dim} x {expert.hidden_dim} {expert.dtype}",
    }
    summaries = tuple(summarize_replay(run, FLAGS.skip) for run in runs)
    other_seconds = FLAGS.other_ms / 1e3
    report = Comparison(settings=settings, summaries=summaries, other_seconds=other_seconds)
    print(report.table().to_text())
    if FLAGS.output is not None:
        with new_directory(Path(FLAGS.output), MAKER, FLAGS.overwrite) as directory:
            report.write(directory, trace, runs)
        common.report(f"Page: {Path(FLAGS.output) / PAGE_FILE}")


def run() -> None:
    """The command line."""
    flags.DEFINE_string("trace", None, "An .npz file of recorded expert loads.")
    flags.DEFINE_bool("synthetic", False, "Generate loads: top 10 experts take 75 %, with drift.")
    flags.DEFINE_enum(
        "compare", "policies", list(COMPARISONS), "All policies, or triggers of the flexible one."
    )
    flags.DEFINE_string("output", None, "Directory for the page, its pictures and the numbers.")
    flags.DEFINE_bool("overwrite", False, common.OVERWRITE_HELP)
    flags.DEFINE_string("save_trace", None, "Also write the loads to this file.")
    flags.DEFINE_integer("devices", None, "Number of devices; by default that of --trace, or 64.")
    flags.DEFINE_float(
        "choices",
        None,
        "With --trace: scale the loads to this mean number of choices per device, step and layer.",
    )
    flags.DEFINE_integer(
        "slots", 4, "Slots of a device; each holds one replica of an expert.", lower_bound=1
    )
    flags.DEFINE_string("hardware", "a100", f"The kind of device: {NAMES}.")
    flags.DEFINE_integer("skip", 20, "Number of first steps to leave out of averages.")
    flags.DEFINE_float("other_ms", 0.0, "Milliseconds of a step outside of the MoE layers.")
    flags.DEFINE_integer("model_dim", 1024, "Size of an expert's inputs and outputs.")
    flags.DEFINE_integer("hidden_dim", 4096, "Hidden units of an expert.")
    flags.DEFINE_string("dtype", "bfloat16", "Type of activations, and of gradients when sent.")
    measured = "1 for a file of --calibrate."
    flags.DEFINE_float(
        "matmul_efficiency",
        None,
        f"Share of the peak FLOP/s that experts reach; {EFFICIENCY.matmul} by default, {measured}",
    )
    flags.DEFINE_float(
        "network_efficiency",
        None,
        f"Share of the bandwidth that exchanges reach; {EFFICIENCY.network} by default, {measured}",
    )
    flags.DEFINE_integer("experts", 64, "With --synthetic: number of experts.")
    flags.DEFINE_integer("steps", 300, "With --synthetic: number of steps.")
    flags.DEFINE_integer("layers", 1, "With --synthetic: number of MoE layers, independent loads.")
    flags.DEFINE_integer(
        "tokens", 8192, "With --synthetic: tokens per device and step; each chooses two experts."
    )
    flags.DEFINE_integer("seed", 0, "With --synthetic: seed of the loads.")
    common.run(main)


if __name__ == "__main__":
    run()
