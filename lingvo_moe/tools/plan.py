r"""What a model costs on D devices: parameters, FLOPs, memory, communication, time, days.

lingvo-moe-plan --model=m4.MoE128E12L --hardware=tpu_v3 --mesh=expert:128
lingvo-moe-plan --model=m4.MoE128E12L --compile=v3:8x8    # asks the TPU compiler; needs no TPU
lingvo-moe-plan --model=m4.MoE2048E36L --sweep --output=build/sweep
"""

import json
from pathlib import Path

from absl import flags

from lingvo_moe.planning.hardware import HARDWARE
from lingvo_moe.planning.plan import make_plan, sweep
from lingvo_moe.planning.report import format_plan, format_sweep, to_json, write_report
from lingvo_moe.sharding.annotations import parse_mesh
from lingvo_moe.tools import common

FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    """Flags to make_plan or sweep."""
    del argv
    if FLAGS.sweep and FLAGS.mesh:
        raise ValueError("--sweep chooses its own meshes; leave out --mesh.")
    if FLAGS.sweep:
        plans = sweep(FLAGS.model, FLAGS.set, FLAGS.hardware, FLAGS.compile, progress=common.report)
    else:
        mesh = parse_mesh(FLAGS.mesh) if FLAGS.mesh else None
        plans = [
            make_plan(
                FLAGS.model, FLAGS.set, FLAGS.hardware, mesh, FLAGS.compile, progress=common.report
            )
        ]
    if FLAGS.json:
        print(json.dumps([to_json(p) for p in plans] if FLAGS.sweep else to_json(plans[0])))
    else:
        print(format_sweep(plans) if FLAGS.sweep else format_plan(plans[0]))
    if FLAGS.output:
        write_report(plans, Path(FLAGS.output))
        common.report(f"Report: {FLAGS.output}/index.html")


def run() -> None:
    """The console script."""
    flags.DEFINE_string("model", None, common.MODEL_HELP, required=True)
    flags.DEFINE_string("hardware", "tpu_v3", f"One of {', '.join(HARDWARE)}.")
    flags.DEFINE_string(
        "mesh", None, "axis:size,…, such as data:2,expert:4; by default a device an expert."
    )
    flags.DEFINE_string(
        "compile",
        None,
        "Compile with the real TPU compiler for this topology, such as v3:8x8; with --sweep for a "
        "generation: v3, v4 or v5p.",
    )
    flags.DEFINE_bool("sweep", False, "Go from 8 to 2048 devices at constant work per device.")
    flags.DEFINE_bool("json", False, "Print JSON.")
    flags.DEFINE_string("output", None, "Directory for plan.json, index.html and sweep.png.")
    flags.DEFINE_multi_string("set", [], common.SET_HELP)
    common.run(main)


if __name__ == "__main__":
    run()
