"""Writes a training step as StableHLO: programs for CPU and CUDA that JAX runs."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf

from lingvo_moe import __version__
from lingvo_moe.config.params import to_fields
from lingvo_moe.data.dataset import Example
from lingvo_moe.data.packing import batch_of, pack
from lingvo_moe.data.vocabulary import UNK
from lingvo_moe.jobs.training import train_step
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.runtimes.lowering import (
    ArraySpec,
    batch_specs,
    init_function,
    shapes,
    state_specs,
    train_function,
)
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.system import npz
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

PLATFORMS = ("cpu", "cuda")
TRAIN, _INITIALIZE = "train", "initialize"
_BATCH, _MANIFEST = "batch.npz", "manifest.json"


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


def example_batch(params: TranslationParams, num_pairs: int = 1) -> NestedMap:
    """A training batch of random sentences, a quarter to a half of a row each; see `batch_of`."""
    rng, inputs = np.random.default_rng(0), params.input
    lengths = inputs.source_length, inputs.target_length
    sizes = params.source_vocab_size, params.target_vocab_size

    def examples():
        for _ in range(8 * inputs.batch_size):
            share = rng.uniform(0.25, 0.5)
            source, target = (
                rng.integers(UNK + 1, size, math.ceil(share * length)).astype(np.int32)
                for size, length in zip(sizes, lengths, strict=True)
            )
            yield Example(source, target), int(rng.integers(num_pairs))

    return next(pack(examples(), inputs.shape))


def write(name: str, params: TranslationParams, output: Path) -> None:
    """Writes the training step of a model, and a program that draws the initial state.

    Args:
        name: of the model.
        params: its params; they give the shapes of a batch.
        output: an empty directory.

    Raises ValueError: the shapes do not fit; OSError: output cannot be written.
    """
    task = static(TranslationTask(params))
    programs = {_INITIALIZE: initialize_program(task), TRAIN: train_program(task)}
    described = {}
    for program_name, program in programs.items():
        file = f"{program_name}.stablehlo"
        (output / file).write_bytes(lower(program).serialize())
        described[program_name] = {
            "file": file,
            "arguments": [_described(specs) for specs in program.arguments],
            "donated": list(program.donated),
        }
    batch = example_batch(params, len(task.pairs))
    npz.save(output / _BATCH, compress=False, **batch)
    manifest = {
        "model": name,
        "params": to_fields(params),
        "programs": described,
        "seed": params.train.seed,
        "batch": {
            "file": _BATCH,
            "source_tokens": int(np.sum(batch.source_segment_ids != 0)),
            "target_tokens": int(np.sum(batch.target_segment_ids != 0)),
        },
        "flops": _flops(params),
        "platforms": PLATFORMS,
        "versions": {"lingvo_moe": __version__, "jax": jax.__version__},
        "parameters": count_weights(task.weights()),
        "shape": _shape(params),
    }
    (output / _MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False))


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


def _described(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    return {
        name: {"shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name}
        for name, spec in specs.items()
    }


def _flops(params: TranslationParams) -> dict[str, float]:
    """Part -> FLOPs of the matrix products of a step, without recomputation; see planning."""
    once = dataclasses.replace(params.model, remat=False, scan=False)
    costs = count_costs(dataclasses.replace(params, model=once), Mesh(("data",), (1,)), 4)
    flops: dict[str, float] = {}
    for work in costs.work:
        flops[work.part] = flops.get(work.part, 0.0) + work.flops
    return {part: count for part, count in flops.items() if count}


def _shape(params: TranslationParams) -> dict[str, Any]:
    """The sizes of the model, so that another framework can build the same one."""
    simple = (bool, int, float, str, type(None))

    def sizes(of):
        fields = ((f.name, getattr(of, f.name)) for f in dataclasses.fields(of))
        return {name: value for name, value in fields if isinstance(value, simple)}

    model, moe = params.model, params.model.moe
    experts = moe and sizes(moe) | {
        "hidden_dim": moe.expert.hidden_dim,
        "capacity_factor": moe.training.capacity_factor,
    }
    return {**sizes(params), **sizes(model), "moe": experts}
