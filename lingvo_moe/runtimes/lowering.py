"""Lowers an annotated TensorFlow function to one program that XLA partitions over many devices.

TensorFlow uses XLA's partitioner only on TPUs. JAX can lower TensorFlow functions and partitions
them on CPU, GPU and TPU; this package uses JAX only for that. Lowering and compiling need only
shapes, no weights.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax.experimental import jax2tf
from jax.sharding import NamedSharding, PartitionSpec

from lingvo_moe.nn.layer import init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import TableSpec
from lingvo_moe.runtimes.task import SearchRequest
from lingvo_moe.sbp.annotations import use_mesh
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.sbp.types import Mesh, Rules, axes_of, cuts, piece_shape, type_of
from lingvo_moe.training.step import TrainState, TrainStep

_SENTENCES = {"source_ids", "lengths", "tasks"}


class ArraySpec(NamedTuple):
    """The specification of an array."""

    shape: tuple[int, ...]
    dtype: Any  # a numpy dtype or its name
    dims: str  # one letter a dimension; rules give the mesh axes of each letter


@dataclasses.dataclass(frozen=True)
class Layout:
    """Devices in a mesh, and the sharding rules of arrays."""

    mesh: Mesh  # names and sizes of the axes
    sharding: ShardingParams = ShardingParams()
    # one for each position of the mesh, in row-major order; None for all devices in JAX's order.
    # For compiling, descriptions of devices are enough (jax.experimental.topologies).
    devices: Sequence[Any] | None = None

    @property
    def jax_mesh(self) -> jax.sharding.Mesh:
        """The same mesh with its devices.

        Raises:
            ValueError: there are fewer or more devices than places in the mesh.
        """
        devices = jax.devices() if self.devices is None else self.devices
        if len(devices) != math.prod(self.mesh.shape):
            raise ValueError(
                f"Mesh {self.mesh} has {math.prod(self.mesh.shape)} places and there are "
                f"{len(devices)} devices ({devices[0].platform}); change --mesh, or on a CPU "
                f"--virtual_devices."
            )
        return jax.sharding.Mesh(np.array(devices).reshape(self.mesh.shape), self.mesh.axes)

    @property
    def compute_rules(self) -> Rules:
        """The rules of activations and weights in use."""
        return self.sharding.compute_rules(self.mesh)

    @property
    def storage_rules(self) -> Rules:
        """The rules of weights and slots between steps."""
        return self.sharding.storage_rules(self.mesh)

    @property
    def groups(self) -> int:
        """The number of devices with different groups of tokens."""
        return self.mesh.size(axes_of("G", self.compute_rules))

    def shardings(self, specs: Mapping[str, ArraySpec]) -> dict[str, NamedSharding]:
        """The sharding of each array.

        Raises:
            ValueError: as `type_of`, or a dimension does not divide into equal pieces.
        """
        mesh = self.jax_mesh
        return {
            name: NamedSharding(mesh, self._partition_spec(name, spec))
            for name, spec in specs.items()
        }

    @property
    def replicated(self) -> NamedSharding:
        """The sharding with a copy on every device."""
        return NamedSharding(self.jax_mesh, PartitionSpec())

    def _partition_spec(self, name, spec):
        sbp = type_of(spec.dims, spec.shape, self.mesh, self.storage_rules)
        piece_shape(spec.shape, sbp, self.mesh, spec.dims, repr(name))
        return PartitionSpec(*(axes or None for axes in cuts(len(spec.shape), sbp, self.mesh)))


def lowerable(function: Callable, layout: Layout) -> Callable:
    """A TensorFlow function as a function for jax.jit.

    Args:
        function: takes flat NestedMaps of tensors and returns dicts of tensors, or a tuple of them.
        layout: devices and sharding rules.

    Returns:
        A function of plain dicts of arrays.
    """

    on_tpu = layout.jax_mesh.devices.flat[0].platform == "tpu"

    def annotated(*flat):
        rules = layout.compute_rules, layout.storage_rules
        with use_mesh(layout.mesh, *rules, cut_random=on_tpu):
            return _plain(function(*map(NestedMap, flat)))

    traced = tf.function(annotated, jit_compile=True, autograph=False)
    return jax2tf.call_tf(traced, call_tf_graph=False)


def partitioned(
    function: Callable,
    args: Sequence[Mapping[str, ArraySpec] | None],
    results: Any,
    layout: Layout,
    *,
    donate: Sequence[int] = (),
) -> jax.stages.Wrapped:
    """One program for all devices of a mesh.

    Args:
        function: as for `lowerable`.
        args: likewise; None for arrays that are split as they are given.
        results: the structure of the function's results: a dict of ArraySpecs for each dict of
            split arrays, and None for results with a copy on every device.
        layout: devices and sharding rules.
        donate: indices of the arguments whose memory the results may use.

    Returns:
        The jitted function. `.lower(*shapes(args))` lowers it without data.
    """
    out = jax.tree.map(
        lambda specs: layout.replicated if specs is None else layout.shardings(specs),
        results,
        is_leaf=lambda x: x is None or (isinstance(x, dict) and _holds_specs(x)),
    )
    return jax.jit(
        lowerable(function, layout),
        in_shardings=tuple(specs and layout.shardings(specs) for specs in args),
        out_shardings=out,
        donate_argnums=tuple(donate),
    )


def shapes(args: Sequence[Mapping[str, ArraySpec]]) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """The shapes of a program's arguments, for lowering."""
    return [
        {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for name, spec in specs.items()}
        for specs in args
    ]


def weight_specs(weights: NestedMap, prefix: str) -> dict[str, ArraySpec]:
    """A tree of WeightSpecs by full name: {"theta/encoder/…": ArraySpec}."""
    return {
        f"{prefix}/{path}": ArraySpec(spec.shape, np.dtype(_dtype(spec)), spec.dims)
        for path, spec in weights.flatten()
    }


def state_specs(weights: NestedMap, slots: NestedMap) -> dict[str, ArraySpec]:
    """All of a TrainState by name: "step", "theta/…", "slots/…".

    The step is int32 here: JAX keeps no 64-bit integers by default.
    """
    step = {"step": ArraySpec((), np.dtype(np.int32), "")}
    return step | weight_specs(weights, "theta") | weight_specs(slots, "slots")


def batch_specs(batch: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """The specs of a batch's arrays (or objects with shape and dtype), split by rows."""
    return {
        name: ArraySpec(tuple(value.shape), np.dtype(value.dtype), "B" + "." * (value.ndim - 1))
        for name, value in batch.items()
    }


def partition_train_step(
    step: TrainStep, batch: Mapping[str, ArraySpec], layout: Layout
) -> tuple[jax.stages.Wrapped, list[dict[str, ArraySpec]]]:
    """The training step (state, batch) -> (state, metrics), its state donated.

    Args:
        step: the step.
        batch: from `batch_specs`.
        layout: devices and sharding rules.

    Returns:
        The program, and the specs of its two arguments.
    """
    weights = step.task.weights()
    state = state_specs(weights, step.optimizer.slots(weights))
    args = [state, dict(batch)]
    return partitioned(train_function(step), args, (state, None), layout, donate=(0,)), args


def train_function(step: TrainStep) -> Callable:
    """The step on a state by name: (state, batch) -> (state, metrics), flat NestedMaps."""

    def run(flat, batch):
        new, metrics = step(_unflatten(flat), batch)
        return _flatten(new), metrics

    return run


def partition_translate(
    task: Any,
    batch: Mapping[str, ArraySpec],
    layout: Layout,
    request: SearchRequest | None = None,
    laid_out: bool = False,
) -> tuple[jax.stages.Wrapped, list[Any]]:
    """Beam search, (theta, batch) -> BeamOutput; every device gets the whole result.

    Args:
        task: the model.
        batch: specs of source_ids, lengths, tasks for a router by task, and the numbers of a
            request in each row; see `batch_specs`.
        layout: devices and sharding rules.
        request: how to search; see `translate`.
        laid_out: whether it takes weights of `partition_lay_out`, split as they are, for theta.

    Returns:
        The program, and the specs of its two arguments; for weights that are laid out None.
    """
    search = task.decode if laid_out else task.translate

    def run(flat, batch):
        sentences = batch.source_ids, batch.lengths, batch.get("tasks")
        numbers = {name: batch[name][0] for name in batch.keys() - _SENTENCES}
        given = request and request.with_inputs(numbers)
        return search(NestedMap.unflatten(flat).theta, *sentences, given)

    args = [None if laid_out else weight_specs(task.weights(), "theta"), dict(batch)]
    return partitioned(run, args, None, layout), args


def partition_lay_out(task: Any, layout: Layout) -> tuple[jax.stages.Wrapped, dict[str, str]]:
    """theta -> the weights that beam search needs in another layout; XLA chooses their split.

    Returns:
        The program, and the weights that stay as they are: name of `task.lay_out` -> name in
        theta, filled by the first call.
    """
    kept: dict[str, str] = {}

    def run(flat):
        given = {id(tensor): name for name, tensor in flat.items()}
        laid_out = dict(NestedMap(theta=task.lay_out(NestedMap.unflatten(flat).theta)).flatten())
        kept.update({name: given[id(x)] for name, x in laid_out.items() if id(x) in given})
        return {name: x for name, x in laid_out.items() if name not in kept}

    theta = layout.shardings(weight_specs(task.weights(), "theta"))
    return jax.jit(lowerable(run, layout), in_shardings=(theta,)), kept


def partition_init(
    weights: NestedMap, slots: NestedMap, layout: Layout
) -> tuple[jax.stages.Wrapped, dict[str, ArraySpec]]:
    """Seed -> initial state, where each device makes its pieces; the argument is {"seed": int32
    []}.

    Returns:
        The program, and the spec of the state.
    """
    state = state_specs(weights, slots)
    seed = {"seed": ArraySpec((), np.dtype(np.int32), "")}
    return partitioned(init_function(weights, slots), [seed], state, layout), state


def init_function(weights: NestedMap, slots: NestedMap) -> Callable:
    """{"seed": int32 []} -> the initial state by name."""

    def run(args):
        theta, slot_values = (init_theta(specs, args.seed) for specs in (weights, slots))
        return _flatten(TrainState(tf.constant(0, tf.int64), theta, slot_values))

    return run


def _unflatten(flat: NestedMap) -> TrainState:
    tree = NestedMap.unflatten(flat)
    slots = tree.get("slots", NestedMap())
    return TrainState(tf.cast(tree.step, tf.int64), tree.theta, slots)


def _flatten(state: TrainState) -> dict[str, tf.Tensor]:
    tree = NestedMap(theta=state.theta, slots=state.slots)
    return {"step": tf.cast(state.step, tf.int32), **dict(tree.flatten())}


def _dtype(spec):
    return np.int32 if isinstance(spec, TableSpec) else np.float32


def _plain(tree):
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return type(tree)(map(_plain, tree)) if type(tree) in (tuple, list) else tree


def _holds_specs(tree: dict) -> bool:
    return all(isinstance(value, ArraySpec) for value in tree.values())
