"""Many devices: XLA's partitioner through JAX, state in pieces, any number of processes."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lingvo_moe.nn.layer import EVALUATION
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.lowering import (
    ArraySpec,
    Layout,
    batch_specs,
    partition_init,
    partition_lay_out,
    partition_train_step,
    partition_translate,
    partitioned,
    state_specs,
    weight_specs,
)
from lingvo_moe.runtimes.task import LEAST_LENGTH, NOTHING, SearchRequest, Task, next_size
from lingvo_moe.training.checkpoint import check_tensors
from lingvo_moe.training.ladder import Ladder
from lingvo_moe.training.replicas import (
    Copy,
    order_after,
    relocate_experts,
    tensors_to_move,
)
from lingvo_moe.training.step import Compiling, TrainStep


class Spmd:
    """Holds the state in pieces on the devices of a mesh and runs the step as one program.

    The interface is that of runtimes.local.Local. Every process makes the same calls with batches
    of the same shape; its devices use only their rows, see `batch_rows`.

    Attributes:
        mesh: of the devices.
    """

    def __init__(self, task: Task, step: TrainStep | None, layout: Layout):
        """Makes an empty runtime; `initialize` or `restore` fills it.

        Args:
            task: the model; `task.for_xla` evaluates and decodes.
            step: the training step; None for decoding and evaluation only, which need no slots.
            layout: the mesh and the sharding rules.

        Raises:
            ValueError: the number of devices is not that of the mesh, or the model cannot be split
                by these rules.
        """
        self._step, self._layout = step, layout
        self.mesh = layout.mesh
        self._fixed_task = task.for_xla(layout.groups)
        self._weights = task.weights()
        self._slots = step.optimizer.slots(self._weights) if step else NestedMap()
        self._specs = state_specs(self._weights, self._slots)
        self._shardings = layout.shardings(self._specs)
        self._state: dict[str, jax.Array] = {}
        self._programs: dict[Any, Any] = {}
        self._laid_out: dict[str, jax.Array] = {}  # for decoding; empty after the weights change
        self._steps = step.on_rungs if step else ()
        self._ladder = Ladder(len(self._steps))

    def initialize(self, seed: int, given: Mapping[str, Any] = NOTHING) -> None:
        """See Local: every device draws its own pieces, and reads its own of what is given."""
        program = self._program(
            "initialize", lambda: partition_init(self._weights, self._slots, self._layout)[0]
        )
        self._state = program({"seed": np.int32(seed)})
        self._fill(given, whole=False)

    def state(self) -> dict[str, jax.Array | np.ndarray]:
        """The state by name: "step" int64, "theta/…", "slots/…" as split arrays.

        Also "ladder" if the step has rungs.
        """
        step = np.asarray(self._state["step"]).astype(np.int64)
        return self._state | {"step": step} | self._ladder.state()

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Restores the result of `state`, from this or another mesh.

        Args:
            tensors: objects with a shape that can be sliced; a process reads only the pieces of its
                own devices.

        Raises:
            ValueError: as `check_tensors`.
        """
        self._fill(tensors, whole=True)

    def train(
        self, batch: Mapping[str, np.ndarray], compiling: Compiling = contextlib.nullcontext
    ) -> NestedMap:
        """See Local. Without rungs it returns before the metrics are computed."""
        specs, fed, self._laid_out = batch_specs(batch), self.feed(batch), {}

        def step(rung):
            name = ("train", rung)
            with contextlib.nullcontext() if _key(name, specs) in self._programs else compiling():
                program = self._program(
                    name,
                    lambda: partition_train_step(self._steps[rung], specs, self._layout)[0],
                    specs,
                )
                self._state, metrics = program(self._state, fed)
            return NestedMap(metrics)

        return self._ladder.take(step)

    def feed(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The batch on the devices; each process sends rows to its own devices."""
        return self._fed(batch, batch_specs(batch))

    def batch_rows(self, rows: int) -> np.ndarray:
        """bool [processes, B]: the rows of a batch that the devices of each process read."""
        spec = ArraySpec((rows,), np.dtype(np.int32), "B")
        found = np.zeros([jax.process_count(), rows], bool)
        devices = self._layout.shardings({"rows": spec})["rows"].devices_indices_map((rows,))
        for device, index in devices.items():
            found[device.process_index][index] = True
        return found

    def relocate(self, table: str, copies: Sequence[Copy]) -> None:
        """See Local. Each copy is a program of the devices that have one of its two slots.

        The other devices go on, and the host does not wait: the next step begins on a device when
        the device has made its copies.
        """
        self._laid_out = {}
        names = list(tensors_to_move(table, self._weights, self._slots))
        held = {
            name: {piece.device: piece.data for piece in self._state[name].addressable_shards}
            for name in names
        }
        for one in copies:
            if one.source >= 0:
                self._exchange(held, one)
        for name, pieces in held.items():
            whole = self._state[name]
            self._state[name] = jax.make_array_from_single_device_arrays(
                whole.shape, whole.sharding, list(pieces.values())
            )
        here = f"theta/{table}"
        placed = np.asarray(self._state[here])
        slots = np.append(placed, -1)[order_after(copies, placed.size)].reshape(placed.shape)
        self._state[here] = _cut(slots, self._specs[here], self._shardings[here])

    def _exchange(self, held, one):
        """Makes a copy in the pieces of tensors by device, on the devices of its two slots."""
        specs = [self._shardings[name].spec for name in held]
        devices, others = _by_expert(self._layout.jax_mesh, specs[0][0])
        width = self._specs[next(iter(held))].shape[0] // len(devices)
        slots, writes = np.array(sorted([(one.source, one.swap), (one.target, True)]), np.int32).T
        sides = list(dict.fromkeys((slots // width).tolist()))  # one if a device has both
        if jax.process_index() not in {d.process_index for d in devices[sides].flat}:
            return
        mesh = jax.sharding.Mesh(devices[sides], ("side", *others))
        specs = [jax.sharding.PartitionSpec("side", *spec[1:]) for spec in specs]
        few = [
            jax.make_array_from_single_device_arrays(
                (len(sides) * width, *self._specs[name].shape[1:]),
                jax.sharding.NamedSharding(mesh, spec),
                [pieces[device] for device in mesh.devices.flat if device in pieces],
            )
            for spec, (name, pieces) in zip(specs, held.items(), strict=True)
        ]
        program = self._program(("exchange", *sides, *specs), lambda: exchange_program(mesh, specs))
        made = program(few, slots % width, writes.astype(bool))
        for pieces, after in zip(held.values(), made, strict=True):
            pieces.update((piece.device, piece.data) for piece in after.addressable_shards)

    def evaluate(self, batch: Mapping[str, np.ndarray]) -> NestedMap:
        """The metrics of a batch, in evaluation mode; changes nothing."""
        task = self._fixed_task

        def run(theta, batch):
            denominator = task.num_targets(batch)
            return task.loss(_tree(theta), batch, denominator, EVALUATION).metrics

        return NestedMap(self._call("evaluate", run, batch))

    def translate(
        self,
        source_ids: np.ndarray,
        lengths: np.ndarray,
        tasks: np.ndarray | None = None,
        request: SearchRequest | None = None,
    ):
        """Decodes a batch of any size: int32 [B, L], [B] and [B]; see the task's `translate`.

        Rows and columns are padded to powers of two, so that few programs are compiled.
        """
        spare = self._spare_rows(len(lengths))
        padded_ids, padded_lengths = _pad(source_ids, lengths, spare)
        batch = {"source_ids": padded_ids, "lengths": padded_lengths}
        if tasks is not None:
            batch["tasks"] = np.pad(tasks, (0, spare))
        if request:
            request, numbers = request.split(static=True)
            batch |= {n: np.repeat(number, len(padded_lengths)) for n, number in numbers.items()}
        specs, task, layout = batch_specs(batch), self._fixed_task, self._layout
        program = self._program(
            ("translate", request),
            lambda: partition_translate(task, specs, layout, request, laid_out=True)[0],
            specs,
        )
        if not self._laid_out:
            lay_out, kept = self._program("lay_out", lambda: partition_lay_out(task, layout))
            theta = self._theta()
            self._laid_out = lay_out(theta) | {name: theta[own] for name, own in kept.items()}
        output = program(self._laid_out, self._fed(batch, specs))
        return jax.tree.map(lambda x: np.asarray(x)[: len(lengths)], output)

    def score(
        self,
        source_ids: np.ndarray,
        source_lengths: np.ndarray,
        target_ids: np.ndarray,
        target_lengths: np.ndarray,
        tasks: np.ndarray | None = None,
    ) -> np.ndarray:
        """Log-probabilities of given translations, float32 [B, T]; padded as in `translate`."""
        given = source_ids, source_lengths, target_ids, target_lengths, tasks
        scores = self._of_given("score", self._fixed_task.score, *given)
        return scores[:, : target_ids.shape[1]]

    def routes(self, *given: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See Local; padded as in `translate`, with the columns that were added."""
        return self._of_given("routes", self._fixed_task.routes, *given)

    def _of_given(
        self, name, function, source_ids, source_lengths, target_ids, target_lengths, tasks=None
    ):
        """function(theta, *given) of given translations, without the rows that were added."""
        spare = self._spare_rows(len(source_lengths))
        tasks = np.zeros_like(source_lengths) if tasks is None else tasks
        batch = {"tasks": np.pad(tasks, (0, spare))}
        sides = (("source", source_ids, source_lengths), ("target", target_ids, target_lengths))
        for side, ids, lengths in sides:
            batch[f"{side}_ids"], batch[f"{side}_lengths"] = _pad(ids, lengths, spare)
        order = ("source_ids", "source_lengths", "target_ids", "target_lengths", "tasks")
        results = self._call(
            name, lambda theta, batch: function(_tree(theta), *map(batch.get, order)), batch
        )
        return jax.tree.map(lambda x: np.asarray(x)[: len(source_lengths)], results)

    def _spare_rows(self, rows):
        """The number of rows to add to a batch of any size."""
        return next_size(rows, self._layout.groups) - rows

    def _fill(self, tensors, whole):
        """Sets the parts of the state that have a tensor; if `whole`, all must have one."""
        self._laid_out = {}
        tensors = relocate_experts(tensors, self._weights, self._slots)
        specs = {n: spec for n, spec in self._specs.items() if whole or n in tensors}
        check_tensors(tensors, {name: spec.shape for name, spec in specs.items()})
        self._state = self._state | {
            name: _cut(tensors[name], spec, self._shardings[name]) for name, spec in specs.items()
        }
        self._ladder.restore(tensors)

    def _call(self, name, run, batch):
        """run(theta, batch) on the current weights; every device gets the whole result."""
        weights, specs = weight_specs(self._weights, "theta"), batch_specs(batch)
        program = self._program(
            name, lambda: partitioned(run, [weights, specs], None, self._layout), specs
        )
        return program(self._theta(), self._fed(batch, specs))

    def _theta(self):
        """The weights for evaluation and decoding, by name."""
        theta, slots = (_subtree(self._state, part) for part in ("theta", "slots"))
        if self._step:
            theta = self._step.optimizer.averaged(theta, slots, self._weights)
        return dict(NestedMap(theta=theta).flatten())

    def _program(self, name, make, specs=None):
        """The compiled program for a name and shapes, made on first use."""
        key = _key(name, specs)
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]

    def _fed(self, batch, specs):
        """Arrays on the devices; each process sends the parts of its own devices."""
        shardings = self._layout.shardings(specs)
        return {n: _cut(np.asarray(value), specs[n], shardings[n]) for n, value in batch.items()}


def _by_expert(mesh, axes):
    """The devices of a mesh by the slots that they have, which are split over axes, and the names
    of the other axes."""
    axes = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    others = [axis for axis in mesh.axis_names if axis not in axes]
    devices = mesh.devices.transpose([mesh.axis_names.index(axis) for axis in (*axes, *others)])
    return devices.reshape(-1, *(mesh.shape[axis] for axis in others)), others


def exchange_program(mesh, specs):
    """(tensors [P, …], at, writes) -> tensors. The row at[0] of side 0 and the row at[1] of side 1,
    or of the only side, replace each other where writes[0] and writes[1] are true."""

    def across(tensors, at, writes):
        me = jax.lax.axis_index("side")

        def exchange(tensor):
            row = jax.lax.dynamic_index_in_dim(tensor, at[me])
            other = jax.lax.ppermute(row, "side", [(0, 1), (1, 0)])
            row = jnp.where(writes[me], other, row)
            return jax.lax.dynamic_update_index_in_dim(tensor, row, at[me], 0)

        return [exchange(tensor) for tensor in tensors]

    def within(tensors, at, writes):
        order = jnp.where(writes, at[::-1], at)
        return [tensor.at[at].set(tensor[order]) for tensor in tensors]

    whole = jax.sharding.PartitionSpec()
    function = across if mesh.shape["side"] > 1 else within
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(specs, whole, whole), out_specs=specs, check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)


def _pad(ids, lengths, spare):
    """ids [B, L] and lengths [B] with spare rows of length 1; L becomes a power of two."""
    columns = next_size(ids.shape[1], LEAST_LENGTH) - ids.shape[1]
    return np.pad(ids, [(0, spare), (0, columns)]), np.pad(lengths, (0, spare), constant_values=1)


def _key(name, specs):
    return name, tuple((n, spec.shape) for n, spec in sorted((specs or {}).items()))


def _cut(source: Any, spec: ArraySpec, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array in pieces; each piece on this process's devices is read separately from source."""

    def piece(index):
        index = tuple(
            slice(i.start or 0, size if i.stop is None else i.stop)
            for i, size in zip(index, spec.shape, strict=True)
        )
        return np.asarray(source[index], spec.dtype)

    return jax.make_array_from_callback(spec.shape, sharding, piece)


def _subtree(state: Mapping[str, Any], part: str) -> NestedMap:
    names = {n: value for n, value in state.items() if n.startswith(f"{part}/")}
    return NestedMap.unflatten(names).get(part, NestedMap())


def _tree(theta: NestedMap) -> NestedMap:
    return NestedMap.unflatten(theta).theta
