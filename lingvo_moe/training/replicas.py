"""Replicas of experts in slots: sums of their gradients, and copies from slot to slot.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 4. A TableSpec among the weights gives
the expert in each slot. The first dimension of the experts' weights then counts slots instead of
experts.

P slots of a layer, E experts of a layer.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.layer import WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import EXPERTS, PLACEMENT, TableSpec
from lingvo_moe.sbp.annotations import annotate, num_pieces
from lingvo_moe.sbp.gshard import manual
from lingvo_moe.training.lazy import permuted


def sum_replicas(grads: NestedMap, tables: NestedMap, weights: NestedMap) -> NestedMap:
    """The gradient of each slot's expert: the sum over the expert's slots.

    Slots of one device are summed there. Experts on several devices follow in ascending order, each
    with an AllReduce of one expert's gradients; other experts need none.

    Args:
        grads: of the weights, in slots [P, …].
        tables: the values of the tables.
        weights: WeightSpecs of both.

    Returns grads, the same for all slots of an expert, bit for bit; zero for empty slots.
    """
    given, specs = dict(grads.flatten()), dict(weights.flatten())
    values, places = dict(tables.flatten()), _places(weights)
    for table in places.values():
        paths = [path for path in given if _table_of(path, places) == table]
        dims = [specs[path].dims for path in paths]
        slots = _Shared.of(values[table], specs[table].num_experts, dims)
        given.update(zip(paths, slots.sum([given[path] for path in paths]), strict=True))
    return NestedMap.unflatten(given)


def count_once(grads: NestedMap, tables: NestedMap, weights: NestedMap) -> NestedMap:
    """The result of `sum_replicas` with zeros in all slots of an expert but the first.

    So the norm of the gradient, used for clipping, is that of a model without replicas.
    """
    values, places = dict(tables.flatten()), _places(weights)

    def first(path, grad):
        if (table := _table_of(path, places)) is None:
            return grad
        experts = tf.reshape(values[table], [-1])
        counts = (_first_alike(experts) == tf.range(experts.shape[0])) & (experts >= 0)
        return tf.where(_beside(counts, grad), grad, 0.0)

    return NestedMap.unflatten({path: first(path, grad) for path, grad in grads.flatten()})


class _Shared(NamedTuple):
    """Which slots share an expert; d devices with s slots each."""

    dims: list[str]  # of the gradients
    # int32 [d, s], the first slot on the device with the same expert; -1 for empty slots
    first: tf.Tensor
    at: tf.Tensor  # int32 [d, E], the first slot with each expert on the device; s for none
    number: tf.Tensor  # int32 [E], how many experts from 0 to this one are on several devices

    @classmethod
    def of(cls, placement: tf.Tensor, num_experts: int, dims: list[str]) -> "_Shared":
        table = tf.reshape(placement, [num_pieces("E"), -1])
        held = table[:, None] == tf.range(num_experts)[:, None]  # [d, E, s]
        holds = tf.reduce_any(held, axis=2)
        at = tf.argmax(tf.cast(held, tf.int32), axis=2, output_type=tf.int32)
        several = tf.reduce_sum(tf.cast(holds, tf.int32), axis=0) > 1
        return cls(
            dims=dims,
            first=tf.where(table >= 0, _first_alike(table), -1),
            at=tf.where(holds, at, table.shape[1]),
            number=tf.cumsum(tf.cast(several, tf.int32)),
        )

    def sum(self, grads: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sums over slots, in all slots."""
        grads = self._by_hand(_add_to_first, self.first, grads)
        if num_pieces("E") > 1:
            _, grads = tf.while_loop(
                lambda i, _: i < self.number[-1],
                lambda i, grads: (i + 1, self._over_devices(i, grads)),
                (tf.constant(0), grads),
                parallel_iterations=1,
            )
        return self._by_hand(_copy_first, self.first, grads)

    def _over_devices(self, i, grads):
        """The gradients after the sum over devices for the i-th expert on several."""
        expert = tf.argmax(tf.cast(self.number > i, tf.int32))
        at = tf.gather(self.at, expert, axis=1)
        rows = self._by_hand(_take, at, grads)
        totals = [
            annotate(tf.reduce_sum(row, axis=0), dims[1:], at_rest=True)
            for row, dims in zip(rows, self.dims, strict=True)
        ]
        return self._by_hand(_put, at, grads, totals)

    def _by_hand(self, function, places, grads, totals=()):
        """function(places of a device, its gradients, totals) on each device."""
        letters = [f"E{'.' * (places.shape.rank - 1)}", *self.dims]
        letters += [dims[1:] for dims in self.dims] if totals else []

        def run(places, *pieces):
            place, count = tf.squeeze(places, 0), len(grads)
            return [function(place, *pieces[i::count]) for i in range(count)]

        return manual(run, [places, *grads, *totals], letters, self.dims, at_rest=True)


def _add_to_first(first, grad):
    """Each slot's gradient added to that of the first slot with the same expert, where it stays."""
    return tf.math.unsorted_segment_sum(grad, first, grad.shape[0])


def _take(at, grad):
    """[1, …], the gradient at this slot; zero for none."""
    row = tf.gather(grad, tf.minimum(at, grad.shape[0] - 1)[None])
    return tf.where(at < grad.shape[0], row, 0.0)


def _put(at, grad, total):
    """The gradients with the total at this slot, if there is one."""
    place = tf.minimum(at, grad.shape[0] - 1)
    row = tf.where(at < grad.shape[0], total, grad[place])
    return tf.tensor_scatter_nd_update(grad, place[None, None], row[None])


def _copy_first(first, grad):
    """In each slot the gradient of the first one with the same expert; zero in empty ones."""
    rows = tf.gather(grad, tf.maximum(first, 0))
    return tf.where(_beside(first >= 0, grad), rows, 0.0)


def _first_alike(table):
    """int32 [..., s], the index of the first equal element."""
    same = tf.cast(table[..., :, None] == table[..., None, :], tf.int32)
    return tf.argmax(same, axis=-1, output_type=tf.int32)


def _beside(of_slot, grad):
    """[s] in a shape that broadcasts with [s, …]."""
    return tf.reshape(of_slot, [-1] + [1] * (grad.shape.rank - 1))


def tensors_to_move(table: str, weights: NestedMap, memory: NestedMap) -> dict[str, WeightSpec]:
    """The tensors that a move of experts copies, by name in a state.

    Args:
        table: path of a table among the weights.
        weights: WeightSpecs of the weights.
        memory: WeightSpecs of the optimizer's.

    Returns the specs of the tensors in the table's slots: "theta/…" and "slots/…".
    """
    places = _places(weights)
    return {
        f"{part}/{path}": spec
        for part, specs in (("theta", weights), ("slots", memory))
        for path, spec in specs.flatten()
        if _table_of(path, places) == table
    }


def relocate_experts(
    tensors: Mapping[str, Any], weights: NestedMap, memory: NestedMap
) -> Mapping[str, Any]:
    """A checkpoint's tensors for a model with other slots.

    If the checkpoint's placement has another shape, or it has none (each expert once), the experts
    get the model's initial, even placement. If the model has no table, it gets each expert once.

    Args:
        tensors: by name, with a shape, sliced by tuples of slices; only placements are read here.
        weights: WeightSpecs of the model's weights.
        memory: WeightSpecs of the optimizer's.
    """
    specs = dict(weights.flatten())
    tensors, changed = experts_once(tensors, specs), {}
    for table in _places(weights).values():
        spec, name = specs[table], f"theta/{table}"
        held = np.asarray(tensors[name]) if name in tensors else np.arange(spec.num_experts)
        if held.shape == spec.shape:
            continue
        changed[name] = spec.init(spec.shape, None).numpy()
        source = _first_slots(held, spec.num_experts)[changed[name].ravel()]
        for slots in tensors_to_move(table, weights, memory):
            if slots in tensors:
                changed[slots] = permuted(tensors[slots], source)
    return {**tensors, **changed} if changed else tensors


def experts_once(tensors: Mapping[str, Any], kept: Collection[str] = ()) -> Mapping[str, Any]:
    """A checkpoint's tensors with each expert once, in order, and without tables.

    Args:
        tensors: as for `relocate_experts`.
        kept: paths of tables that stay unchanged, with their experts.
    """
    weights = [name.removeprefix("theta/") for name in tensors if name.startswith("theta/")]
    tables = [path for path in weights if path.endswith(f"/{PLACEMENT}") and path not in kept]
    changed = {}
    for table in tables:
        held = np.asarray(tensors[f"theta/{table}"])
        source = _first_slots(held, int(held.max()) + 1)
        experts = f"{table.removesuffix(PLACEMENT)}{EXPERTS}/"
        for name, tensor in tensors.items():
            if name.partition("/")[2].startswith(experts):
                changed[name] = permuted(tensor, source)
    others = {name: t for name, t in tensors.items() if name.removeprefix("theta/") not in tables}
    return {**others, **changed} if tables else tensors


def _first_slots(placement: np.ndarray, num_experts: int) -> np.ndarray:
    """int [E]: the first slot of each expert."""
    held = placement.ravel()
    return np.array([np.argmax(held == expert) for expert in range(num_experts)])


class Copy(NamedTuple):
    """A copy of one expert's state from slot to slot; -1 as the source empties the target."""

    target: int
    source: int
    swap: bool = False  # whether the source gets the target's expert


def copies(source: np.ndarray) -> list[Copy]:
    """Moves of many slots, one after the other.

    A slot is written only after all moves that read it; cycles become swaps. So no expert is ever
    without a slot.

    Args:
        source: int32, P numbers in any shape: the slot that each slot copies from, or -1.
    """
    flat = source.ravel().tolist()
    pending = {slot: origin for slot, origin in enumerate(flat) if slot != origin}
    result = []
    while pending:
        needed = set(pending.values())
        slot = next((slot for slot in pending if slot not in needed), None)
        if slot is not None:
            result.append(Copy(slot, pending.pop(slot)))
        else:
            slot, origin = pending.popitem()
            result.append(Copy(slot, origin, swap=True))
            after = {s: origin if o == slot else o for s, o in pending.items()}
            pending = {s: o for s, o in after.items() if s != o}
    return result


def order_after(copies: Sequence[Copy], slots: int) -> np.ndarray:
    """int [P]: the slot whose expert each slot has after copies; -1 for none."""
    order = np.arange(slots)
    for target, origin, swap in copies:
        held = order[target]
        order[target] = order[origin] if origin >= 0 else -1
        if swap:
            order[origin] = held
    return order


def _places(weights: NestedMap) -> dict[str, str]:
    """Path of the weights that a table places -> path of the table."""
    return {
        "/".join([*table.split("/")[:-1], spec.places]): table
        for table, spec in weights.flatten()
        if isinstance(spec, TableSpec)
    }


def _table_of(path: str, places: dict[str, str]) -> str | None:
    """The table for the weight, or the optimizer slot, at a path; None without one."""
    return next((table for part, table in places.items() if path.startswith(f"{part}/")), None)
