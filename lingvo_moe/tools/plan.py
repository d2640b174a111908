r"""Predicts the cost of a model on D devices, and searches the best way to split it.

lingvo-moe-plan --model=m4.MoE128E12L --hardware=tpu_v3 --mesh=expert:128
lingvo-moe-plan --model=m4.MoE128E12L --compile=v3:8x8    # uses the TPU compiler, without a TPU
lingvo-moe-plan --model=m4.MoE128E12L --devices=64 --hardware=h200 --search --output=build/plan
lingvo-moe-train --flagfile=build/plan/plan.flags --data=DATA --logdir=LOGDIR
"""

import json
from pathlib import Path

from lingvo_moe.hardware.chips import HARDWARE, NAMES, find_hardware
from lingvo_moe.planning import explain
from lingvo_moe.planning.plan import format_plan, make_plan
from lingvo_moe.planning.search import compare_strategies
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.system.files import check_output, new_directory
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag

MAKER = "lingvo-moe-plan"
TABLE = (
    Flag("model", str, None, common.MODEL_HELP),
    Flag("hardware", str, "tpu_v3", f"The kind of device: {NAMES}."),
    Flag("mesh", str, None,
         "axis:size,…, such as data:2,expert:4; by default one device per expert."),
    Flag("compile", str, None,
         "Compile with the real TPU compiler for this topology, such as v3:8x8."),
    Flag("decode", int, None,
         "With --compile: compile beam search instead of the training step, for a batch of "
         "this number of sentences of input.source_length tokens each.", least=1),
    Flag("search", bool, False, "Choose mesh, sharding and remat for --devices."),
    Flag("devices", int, None, "How many devices --search may use.", least=1),
    Flag("max_sent_gb", float, None,
         "For --search: limit on the GB of a device's collectives in a step, or inf for no "
         "limit; by default what the paper's annotation sends.", least=0.0),
    Flag("json", bool, False, "Print JSON instead of tables."),
    Flag("output", str, None,
         "Directory for plan.json; with --search plan.flags and search.json instead."),
    common.OVERWRITE,
    common.SET,
)  # fmt: skip


@common.tool(TABLE)
def main() -> None:
    """Flags to one of the functions below."""
    common.check_effect("with --search", FLAGS.search, "devices", "max_sent_gb")
    common.check_effect("without --search", not FLAGS.search, "mesh", "compile", "decode")
    common.check_effect("with --compile", FLAGS.compile is not None, "decode")
    if not FLAGS.model:
        raise ValueError("--model is missing; see lingvo-moe-models.")
    if FLAGS.output:
        check_output(Path(FLAGS.output), MAKER, FLAGS.overwrite)
    _search() if FLAGS.search else _plan()


def _plan() -> None:
    mesh = parse_mesh(FLAGS.mesh) if FLAGS.mesh else None
    plan = make_plan(
        FLAGS.model, FLAGS.set, _hardware(), mesh, FLAGS.compile, common.report, FLAGS.decode
    )
    print(json.dumps(plan) if FLAGS.json else format_plan(plan))
    if FLAGS.output:
        with new_directory(Path(FLAGS.output), MAKER, FLAGS.overwrite) as directory:
            (directory / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")


def _hardware() -> str:
    """The kind of device: that of --compile, where it is known."""
    compiled = f"tpu_{(FLAGS.compile or '').partition(':')[0]}"
    if compiled not in HARDWARE:
        return FLAGS.hardware
    if FLAGS["hardware"].present and FLAGS.hardware != compiled:
        raise ValueError(
            f"--compile={FLAGS.compile} is for {compiled}, and --hardware={FLAGS.hardware} is "
            f"another device; leave out --hardware."
        )
    return compiled


def _search() -> None:
    if not FLAGS.devices:
        raise ValueError("--search needs --devices, such as --devices=64.")
    params = registered(FLAGS.model, FLAGS.set)
    max_sent = None if FLAGS.max_sent_gb is None else 1e9 * FLAGS.max_sent_gb
    found = compare_strategies(params, find_hardware(FLAGS.hardware), FLAGS.devices, max_sent)
    if FLAGS.json:
        print(json.dumps(explain.search_to_json(found)))
    else:
        title = f"{FLAGS.model} on {FLAGS.devices} x {FLAGS.hardware}"
        print(explain.format_search(title, found))
    flagfile = explain.flags(FLAGS.model, FLAGS.set, params, found.best.strategy)
    if FLAGS.output:
        with new_directory(Path(FLAGS.output), MAKER, FLAGS.overwrite) as directory:
            (directory / "plan.flags").write_text(flagfile)
            text = json.dumps(explain.search_to_json(found), indent=1)
            (directory / "search.json").write_text(text + "\n")
        common.report(f"Run it: lingvo-moe-train --flagfile={FLAGS.output}/plan.flags --data=…")
    elif not FLAGS.json:
        print(
            f"\nflags that run it (--output=DIR writes them to DIR/plan.flags)\n{flagfile}", end=""
        )


if __name__ == "__main__":
    main()
