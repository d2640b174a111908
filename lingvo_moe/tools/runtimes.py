"""The flag --runtime and those that belong to it: where a tool runs its model."""

import contextlib
import importlib.util
from collections.abc import Iterator

import tensorflow as tf
from absl import flags

from lingvo_moe.runtimes.local import Local
from lingvo_moe.sharding.annotations import Mesh, parse_mesh
from lingvo_moe.training.checkpoint import ALONE, Process

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The flags of `make_runtime`."""
    flags.DEFINE_enum("runtime", "local", sorted(RUNTIMES), "One device, or many through JAX.")
    flags.DEFINE_string(
        "mesh", None, "axis:size,…, such as data:2,expert:4; by default all devices along data."
    )
    flags.DEFINE_integer(
        "virtual_devices", None, "Split this machine's CPU into N devices.", lower_bound=1
    )


def define_process_flags() -> None:
    """The flags of `joined`, for tools that many processes may run together."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, or auto to ask the cluster.")
    flags.DEFINE_integer("process_index", None, "Which process this is, from 0.", lower_bound=0)
    flags.DEFINE_integer("process_count", None, "How many there are.", lower_bound=1)


@contextlib.contextmanager
def joined() -> Iterator[Process]:
    """Connects to the other processes that the flags or the cluster name, and ends with them."""
    if FLAGS.runtime == "local":
        yield ALONE
        return
    prepare_jax()
    from lingvo_moe.runtimes import processes

    with processes.joined(FLAGS.coordinator, FLAGS.process_index, FLAGS.process_count) as process:
        yield process


def make_runtime(task, step=None):
    """The runtime given by the flags, for a task and, in training, its TrainStep."""
    return RUNTIMES[FLAGS.runtime](task, step)


def _spmd(task, step):
    prepare_jax()
    import jax

    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.spmd import Spmd

    # TensorFlow only traces here, but would reserve all memory of the GPUs.
    tf.config.set_visible_devices([], "GPU")
    mesh = parse_mesh(FLAGS.mesh) if FLAGS.mesh else Mesh(("data",), (jax.device_count(),))
    return Spmd(task, step, Layout(mesh, task.params.sharding))


RUNTIMES = {"local": Local, "spmd": _spmd}


def prepare_jax():
    """Tells JAX of virtual devices before it looks for real ones."""
    if importlib.util.find_spec("jax") is None:
        raise ValueError(
            "--runtime=spmd needs JAX, which is not installed: pip install 'lingvo_moe[spmd]'. "
            "--runtime=local, the default, does without."
        )
    import jax

    wanted = FLAGS.virtual_devices
    if wanted is not None and wanted != jax.config.jax_num_cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", wanted)
