"""Replicas of experts in slots: sums of their gradients, and moves from slot to slot.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 4. A TableSpec among the weights gives
the expert in each slot. The first dimension of the experts' weights then counts slots instead of
experts.

P slots of a layer, E experts of a layer, N moves of a round.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.layer import WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import EXPERTS, PLACEMENT, TableSpec
from lingvo_moe.training.lazy import Permuted


def sum_replicas(grads: NestedMap, tables: NestedMap, weights: NestedMap) -> NestedMap:
    """The gradient of each expert: the sum over its slots.

    So the norm of the gradient, used for clipping, is that of a model without replicas.

    Args:
        grads: of the weights, in slots [P, …].
        tables: the values of the tables.
        weights: WeightSpecs of both.

    Returns:
        grads with [E, …] instead of slots. Gradients of empty slots are ignored.
    """

    def add(grad, experts, spec):
        return tf.math.unsorted_segment_sum(grad, experts, spec.num_experts)

    return _on_slots(add, grads, tables, weights)


def copy_to_replicas(grads: NestedMap, tables: NestedMap, weights: NestedMap) -> NestedMap:
    """The inverse of `sum_replicas`: every slot gets the gradient of its expert, bit for bit.

    Args:
        grads: from `sum_replicas`.
        tables: as for `sum_replicas`.
        weights: as for `sum_replicas`.

    Returns:
        grads in slots; zero for empty ones.
    """

    def give(grad, experts, _):
        rows = tf.gather(grad, tf.maximum(experts, 0))
        filled = tf.reshape(experts >= 0, [-1] + [1] * (grad.shape.rank - 1))
        return tf.where(filled, rows, 0.0)

    return _on_slots(give, grads, tables, weights)


def tensors_to_move(table: str, weights: NestedMap, memory: NestedMap) -> dict[str, WeightSpec]:
    """The tensors that a move of experts copies, by name in a state.

    Args:
        table: path of a table among the weights.
        weights: WeightSpecs of the weights.
        memory: WeightSpecs of the optimizer's.

    Returns:
        The specs of the tensors in the table's slots: "theta/…" and "slots/…".

    Raises:
        ValueError: there is no such table.
    """
    places = _places(weights)
    if table not in places.values():
        raise ValueError(f"No table {table!r} places experts; there are {sorted(places.values())}.")
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
                changed[slots] = Permuted(tensors[slots], source)
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
                changed[name] = Permuted(tensor, source)
    others = {name: t for name, t in tensors.items() if name.removeprefix("theta/") not in tables}
    return {**others, **changed} if tables else tensors


def _first_slots(placement: np.ndarray, num_experts: int) -> np.ndarray:
    """int [E]: the first slot of each expert."""
    held = placement.ravel()
    return np.array([np.argmax(held == expert) for expert in range(num_experts)])


class Round(NamedTuple):
    """Moves that are made together: int32 [N] each; a target of -1 is no move."""

    targets: np.ndarray
    sources: np.ndarray


def rounds(source: np.ndarray, width: int) -> list[Round]:
    """Splits moves of many slots into rounds of N moves, to bound the memory of a round.

    A slot is written only after all moves that read it; cycles become swaps.

    Args:
        source: int32, P numbers in any shape: the slot that each slot copies from.
        width: N, 2 or more.

    Returns:
        Rounds, to be made in order.
    """
    flat = source.ravel().tolist()
    pending = {slot: origin for slot, origin in enumerate(flat) if slot != origin}
    result = []
    while pending:
        needed = set(pending.values())
        ready = [slot for slot in pending if slot not in needed][:width]
        if ready:
            moves = {slot: pending.pop(slot) for slot in ready}
        else:
            slot, origin = pending.popitem()
            moves = {slot: origin, origin: slot}
            after = {s: origin if o == slot else o for s, o in pending.items()}
            pending = {s: o for s, o in after.items() if s != o}
        spare = width - len(moves)
        targets, sources = [*moves, *[-1] * spare], [*moves.values(), *[0] * spare]
        result.append(Round(np.array(targets, np.int32), np.array(sources, np.int32)))
    return result


def move_rows(tensor: tf.Tensor, targets: tf.Tensor, sources: tf.Tensor) -> tf.Tensor:
    """The contents of slots [P, …] after one Round."""
    rows = tf.gather(tensor, sources)
    hit = tf.range(tensor.shape[0])[:, None] == targets  # [P, N]
    row = tf.argmax(tf.cast(hit, tf.int32), axis=1, output_type=tf.int32)
    takes = tf.reshape(tf.reduce_any(hit, axis=1), [-1] + [1] * (tensor.shape.rank - 1))
    return tf.where(takes, tf.gather(rows, row), tensor)


def _on_slots(function, grads, tables, weights):
    """The grads, where slots are changed by function(grad, expert in each slot, table's spec)."""
    places = _places(weights)
    if not places:
        return grads
    values, specs = dict(tables.flatten()), dict(weights.flatten())

    def change(path, grad):
        table = _table_of(path, places)
        if table is None:
            return grad
        return function(grad, tf.reshape(values[table], [-1]), specs[table])

    return NestedMap.unflatten({path: change(path, grad) for path, grad in grads.flatten()})


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
