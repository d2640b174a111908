"""A training step as StableHLO: programs for CPU and CUDA that JAX runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf

from lingvo_moe.data.packing import batch_of
from lingvo_moe.jobs.training import train_step
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.lowering import (
    ArraySpec,
    batch_specs,
    init_function,
    shapes,
    state_specs,
    train_function,
)
from lingvo_moe.tasks.translation import TranslationTask

PLATFORMS = ("cpu", "cuda")


class Program(NamedTuple):
    """A function before it is lowered."""

    # takes flat NestedMaps of tensors; returns a dict of tensors, or a tuple of dicts
    function: Callable
    arguments: Sequence[Mapping[str, ArraySpec]]  # name -> ArraySpec for each of its arguments
    donated: tuple[int, ...] = ()  # the arguments whose memory the results may use


def train_program(task: TranslationTask) -> Program:
    """(state, batch) -> (state, metrics): one training step, its state donated."""
    step, inputs = train_step(task), task.params.input
    weights = task.weights()
    one_row = batch_of([], inputs.shape._replace(rows=1))
    batch = {
        name: ArraySpec((inputs.batch_size, spec.shape[1]), spec.dtype, spec.dims)
        for name, spec in batch_specs(one_row).items()
    }
    state = state_specs(weights, step.optimizer.slots(weights))
    return Program(train_function(step), (state, batch), (0,))


def initialize_program(task: TranslationTask) -> Program:
    """{"seed": int32 []} -> the initial state of training."""
    weights, optimizer = task.weights(), task.params.optimizer
    seed = {"seed": ArraySpec((), np.dtype(np.int32), "")}
    return Program(init_function(weights, optimizer.slots(weights)), (seed,))


def static(task: TranslationTask) -> TranslationTask:
    """The same task with static shapes: Ragged is replaced by Dropless, with equal results."""
    moe = task.params.model.moe
    if moe is None:
        return task
    policies = {name: getattr(moe, name) for name in ("training", "evaluation")}
    ragged = {name: one for name, one in policies.items() if isinstance(one, Ragged)}
    return task.with_moe(**{name: Dropless(groups=one.groups) for name, one in ragged.items()})


def lower(program: Program, platforms: Sequence[str] = PLATFORMS) -> export.Exported:
    """Lowers a program to one module for all platforms; it needs neither devices nor weights.

    Args:
        program: what to lower.
        platforms: some of PLATFORMS; the time grows with their number.

    Raises ValueError: the shapes do not fit.
    """

    def run(*flat):
        results = program.function(*map(NestedMap, flat))
        several = isinstance(results, tuple)
        return tuple(map(_by_name, results)) if several else _by_name(results)

    traced = tf.function(run, jit_compile=True, autograph=False)
    # Without this JAX would look for side effects, which cannot be serialized; there are none.
    called = jax2tf.call_tf(traced, has_side_effects=False, call_tf_graph=False)
    jitted = jax.jit(called, donate_argnums=program.donated)
    return export.export(jitted, platforms=platforms)(*shapes(program.arguments))


def _by_name(tree: dict) -> dict[str, tf.Tensor]:
    return dict(NestedMap(tree).flatten())
