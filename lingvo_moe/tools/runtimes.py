"""The flag --runtime and related flags: the devices on which a tool runs its model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.xla import Xla
from lingvo_moe.sbp.types import Mesh, parse_mesh
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tools import common
from lingvo_moe.tools.common import FLAGS, Flag
from lingvo_moe.training.process import ALONE, Process
from lingvo_moe.training.step import TrainStep

# The flags of `make_runtime`.
TABLE = (
    Flag("runtime", ("local", "spmd", "xla"), "local",
         "local: one device; xla: one device, decoding compiled by XLA; spmd: many devices, "
         "through JAX."),
    Flag("mesh", str, None,
         "axis:size,…, such as data:2,expert:4; by default all devices along data."),
    Flag("virtual_devices", int, None, "Split this machine's CPU into N devices.", least=1),
)  # fmt: skip
# The flags of `join_by_flags`, for tools that run in several processes.
PROCESS_TABLE = (
    Flag("coordinator", str, None, "HOST:PORT of process 0; auto: detect it from the cluster."),
    Flag("process_index", int, None, "Index of this process, from 0.", least=0),
    Flag("process_count", int, None, "Number of processes.", least=1),
)


def check_flags() -> None:
    """Checks that flags of many devices are given only with --runtime=spmd.

    Raises:
        ValueError: one is given without.
    """
    names = ("mesh", "virtual_devices", "coordinator", "process_index", "process_count")
    common.check_effect("with --runtime=spmd", FLAGS.runtime == "spmd", *names)


@contextlib.contextmanager
def join_by_flags() -> Iterator[Process]:
    """Connects to the other processes given by the flags or the cluster; all end together."""
    if FLAGS.runtime != "spmd":
        yield ALONE
        return
    prepare_jax()
    from lingvo_moe.runtimes import processes

    with processes.join_processes(
        FLAGS.coordinator, FLAGS.process_index, FLAGS.process_count
    ) as process:
        yield process


def make_runtime(task: TranslationTask, step: TrainStep | None) -> Any:
    """The RuntimeFn given by the flags."""
    return RUNTIMES[FLAGS.runtime](task, step)


def _spmd(task, step):
    prepare_jax()
    import jax

    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd

    # TensorFlow is used only for tracing, but would reserve all memory of the GPUs.
    tf.config.set_visible_devices([], "GPU")
    mesh = parse_mesh(FLAGS.mesh) if FLAGS.mesh else Mesh(("data",), (jax.device_count(),))
    if jax.process_index() == 0:
        of = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
        used = f"{mesh.size(mesh.axes)} of {jax.device_count()} devices{of}"
        common.report(f"The mesh {mesh} uses {used}.")
    return Spmd(task, step, Layout(mesh, task.params.sharding))


RUNTIMES = {"local": Local, "spmd": _spmd, "xla": Xla}


def prepare_jax():
    """Sets JAX's number of virtual devices before it lists devices."""
    import jax

    wanted = FLAGS.virtual_devices
    if wanted is not None and wanted != jax.config.jax_num_cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", wanted)
