"""Runs the plan of a graph on devices, with JAX: each device computes on its pieces.

Every step of boxing is one collective or a local operation (Yuan et al. 2021, arXiv 2110.15032,
table 2), so the compiled program has the collectives of the plan and no others.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from lingvo_moe.sbp.boxing import Step
from lingvo_moe.sbp.graph import Plan
from lingvo_moe.sbp.types import B, Mesh, P, Split, cuts, piece_shape


def run(plan: Plan, given: Mapping[str, Any]) -> list[jax.Array]:
    """The outputs of a graph in their order; `given` has an array for each input's name."""
    return program(plan)(*(given[name] for name in _inputs(plan)))


def program(plan: Plan) -> Callable[..., list[jax.Array]]:
    """A compiled function of the inputs, in their order; see `run`."""
    mesh = plan.mesh
    devices = np.array(jax.devices()[: int(np.prod(mesh.shape))]).reshape(mesh.shape)
    types, choices = plan.types, {choice.node.name: choice for choice in plan.choices}
    outputs = [name for name, choice in choices.items() if choice.node.is_output]

    def on_device(*pieces):
        had = {(n, types[n]): x for n, x in zip(_inputs(plan), pieces, strict=True)}
        for node, moves, result in plan.choices:
            if node.operator is None:
                continue
            for move in moves:
                if (move.operand, move.target) not in had:
                    piece = had[move.operand, move.source]
                    for step in move.steps:
                        piece = had[move.operand, step.target] = _move(piece, step, mesh)
            operands = (had[move.operand, move.target] for move in moves)
            shape = piece_shape(node.shape, result, mesh)
            compute = node.compute or functools.partial(jnp.reshape, shape=shape)
            had[node.name, result] = compute(*operands)
        return [had[name, types[name]] for name in outputs]

    def specs(names):
        rank = {n: len(choices[n].node.shape) for n in names}
        return [PartitionSpec(*cuts(rank[n], types[n], mesh)) for n in names]

    mapped = jax.shard_map(
        on_device,
        mesh=jax.sharding.Mesh(devices, mesh.axes),
        in_specs=tuple(specs(_inputs(plan))),
        out_specs=specs(outputs),
        check_vma=False,
    )
    return jax.jit(mapped)


def _inputs(plan: Plan) -> list[str]:
    return [choice.node.name for choice in plan.choices if choice.node.operator is None]


def _move(piece: jax.Array, step: Step, mesh: Mesh) -> jax.Array:
    """One step of boxing, on the piece of a device."""
    axes, place = step.axes, mesh.axes.index(step.axes[0])
    source, target = step.source[place], step.target[place]
    match step.kind, source, target:
        case "all-gather", Split(dim), _:
            return lax.all_gather(piece, axes, axis=dim, tiled=True)
        case "all-to-all", Split(dim), Split(cut):
            return lax.all_to_all(piece, axes, split_axis=cut, concat_axis=dim, tiled=True)
        case "all-reduce", _, _:
            return lax.psum(piece, axes)
        case "reduce-scatter", _, Split(cut):
            return lax.psum_scatter(piece, axes, scatter_dimension=cut, tiled=True)
    number = lax.axis_index(axes)
    if source == B and target == P:
        return jnp.where(number == 0, piece, 0)
    if isinstance(target, Split):  # of a copy
        size = piece.shape[target.dim] // mesh.size(axes)
        return lax.dynamic_slice_in_dim(piece, number * size, size, target.dim)
    assert isinstance(source, Split)
    size = piece.shape[source.dim]  # a summand that is zero elsewhere
    whole = list(piece.shape)
    whole[source.dim] *= mesh.size(axes)
    zeros = jnp.zeros(whole, piece.dtype)
    return lax.dynamic_update_slice_in_dim(zeros, piece, number * size, source.dim)
