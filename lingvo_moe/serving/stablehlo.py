"""Writes StableHLO: programs for CPU and CUDA that JAX runs, weights, and a manifest.

B rows, L source length, T target length, N best.
"""

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
from lingvo_moe.core import npz
from lingvo_moe.core.layer import count_weights
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.params import to_fields
from lingvo_moe.data.dataset import Example
from lingvo_moe.data.packing import batch_of, pack
from lingvo_moe.data.vocabulary import EOS, UNK
from lingvo_moe.decoding.request import Request
from lingvo_moe.layers.dropless import Dropless
from lingvo_moe.layers.ragged import Ragged
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.runtimes.lowering import (
    ArraySpec,
    batch_specs,
    init_function,
    shapes,
    state_specs,
    train_function,
    weight_specs,
)
from lingvo_moe.sharding.annotations import Mesh
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tasks.translator import export_request
from lingvo_moe.training.checkpoint import check_tensors

PLATFORMS = ("cpu", "cuda")
TRAIN, TRANSLATE = "train", "translate"
_INITIALIZE = "initialize"
_STATE, _WEIGHTS, _BATCH, _MANIFEST = "state.npz", "weights.npz", "batch.npz", "manifest.json"
_FORMAT = 1


class Program(NamedTuple):
    """A function before it is lowered.

    Attributes:
        function: takes flat NestedMaps of tensors; returns a dict of tensors, or a tuple of dicts.
        arguments: name -> ArraySpec for each of its arguments.
        donated: the arguments whose memory the results may use.
    """

    function: Callable
    arguments: Sequence[Mapping[str, ArraySpec]]
    donated: tuple[int, ...] = ()


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


def translate_program(
    task: TranslationTask, rows: int, length: int, request: Request | None = None
) -> Program:
    """(theta, batch) -> ids int32 [B, N, T], lengths int32 [B, N], scores float32 [B, N].

    Args:
        task: the model.
        rows: B.
        length: L, with language tag and EOS.
        request: how to search; None for what the params say.
    """
    int32 = np.dtype(np.int32)
    batch = {
        "source_ids": ArraySpec((rows, length), int32, "BT"),
        "lengths": ArraySpec((rows,), int32, "B"),
    }
    if task.task_router:
        batch["tasks"] = ArraySpec((rows,), int32, "B")

    def run(flat, batch):
        theta = NestedMap.unflatten(flat).theta
        tasks = batch.get("tasks")
        found = task.translate(theta, batch.source_ids, batch.lengths, tasks, request)
        return {name: value for name, value in found._asdict().items() if value is not None}

    return Program(run, (weight_specs(task.weights(), "theta"), batch))


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


def write_trained(
    model_dir: ModelDir,
    theta: NestedMap,
    step: int,
    output: Path,
    programs: Sequence[str],
    rows: int,
    length: int | None,
) -> None:
    """Writes programs of a trained model, its state and its vocabularies.

    Args:
        model_dir: the trained model; the shape of a training batch is that of its params.
        theta: its weights, arrays.
        step: the step of their checkpoint.
        output: an empty directory.
        programs, rows, length: as the fields of `formats.stablehlo.StableHLO`.

    Raises:
        ValueError: TRAIN is requested and there is no optimizer state, or the shapes do not fit.
        OSError: the checkpoint is damaged, or output cannot be written.
    """
    trains = not model_dir.weights_path.exists()  # or there are weights alone
    programs = programs or (TRAIN, TRANSLATE)[not trains :]
    if TRAIN in programs and not trains:
        raise ValueError(
            f"{model_dir.path} has no optimizer state, so there is no training to continue. Give "
            f"programs=('translate',), or train the model first: lingvo-moe-train --init_from."
        )
    task, request = static(model_dir.task), export_request(model_dir).filled(model_dir.fitted)
    length = length or model_dir.params.input.source_length
    made = {}
    if TRAIN in programs:
        made[TRAIN] = train_program(task)
    if TRANSLATE in programs:
        made[TRANSLATE] = translate_program(task, rows, length, request)
    sources: dict[str, Mapping[str, Any]] = {
        TRANSLATE: dict(NestedMap(theta=theta).flatten())  # perhaps averages
    }
    if TRAIN in programs:  # training goes on from the weights themselves
        sources[TRAIN] = model_dir.checkpoints.read(step).tensors
    arrays = {name: _read(sources[name], made[name].arguments[0]) for name in made}
    described = _write_programs(made, output)
    state = {"file": _STATE, "step": step} | _write_arrays(arrays, output)
    for side in model_dir.hashes:
        model_dir.vocabulary(side).save(output / f"{side}.model")
    _write_rest(
        task,
        output,
        model=model_dir.model,
        params=to_fields(model_dir.params),
        pairs=model_dir.pairs,
        state=state,
        programs=described,
        vocabularies={
            side: {"file": f"{side}.model", "sha256": sha256}
            for side, sha256 in model_dir.hashes.items()
        },
        tags=model_dir.tags,
        source_languages=model_dir.source_languages,
        forms=model_dir.forms,
        in_front=task.params.language_tags.in_front,
        eos=EOS,
        tasks=task.trained_tasks,
        tasks_by=task.task_router.task if task.task_router else None,
    )


def write_untrained(name: str, params: TranslationParams, output: Path) -> None:
    """Writes the training step of a model without weights; see `write_trained`.

    Instead of state.npz there is a program that draws the initial state on the device.

    Args:
        name: of the model.
        params: its params.
        output: an empty directory.

    Raises:
        ValueError: the shapes do not fit.
        OSError: output cannot be written.
    """
    task = static(TranslationTask(params))
    made = {_INITIALIZE: initialize_program(task), TRAIN: train_program(task)}
    _write_rest(
        task,
        output,
        model=name,
        params=to_fields(params),
        pairs=task.pairs,
        state={"program": _INITIALIZE, "seed": params.train.seed, "step": 0},
        programs=_write_programs(made, output),
    )


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

    Raises:
        ValueError: the shapes do not fit.
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


def _write_programs(programs: Mapping[str, Program], output: Path) -> dict[str, Any]:
    """Writes the programs and returns their entries in the manifest."""
    described = {}
    for name, program in programs.items():
        exported = lower(program)
        (output / f"{name}.stablehlo").write_bytes(exported.serialize())
        (output / f"{name}.mlir").write_text(exported.mlir_module())
        described[name] = {
            "file": f"{name}.stablehlo",
            "text": f"{name}.mlir",
            "arguments": [_described(specs) for specs in program.arguments],
            "results": jax.tree.map(
                _description, jax.tree.unflatten(exported.out_tree, exported.out_avals)
            ),
            "donated": list(program.donated),
        }
    return described


def _described(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    return {name: _description(spec) for name, spec in specs.items()}


def _description(array) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": np.dtype(array.dtype).name}


def _read(tensors: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> dict[str, np.ndarray]:
    check_tensors(tensors, {name: spec.shape for name, spec in specs.items()})
    return {name: np.asarray(tensors[name]).astype(spec.dtype) for name, spec in specs.items()}


def _write_arrays(arrays: Mapping[str, Mapping[str, np.ndarray]], output: Path) -> dict[str, str]:
    """Writes the first argument of each program; {"weights": file} if TRANSLATE has its own."""
    first, *others = arrays.values()
    npz.save(output / _STATE, compress=False, **first)
    for weights in others:
        if any(np.any(first[name] != weight) for name, weight in weights.items()):
            npz.save(output / _WEIGHTS, compress=False, **weights)
            return {"weights": _WEIGHTS}
    return {}


def _write_rest(task: TranslationTask, output: Path, **manifest: Any) -> None:
    """Writes the manifest and, for a training step, the example batch."""
    params = task.params
    if TRAIN in manifest["programs"]:
        batch = example_batch(params, len(task.pairs))
        npz.save(output / _BATCH, compress=False, **batch)
        manifest["batch"] = {
            "file": _BATCH,
            "source_tokens": int(np.sum(batch.source_segment_ids != 0)),
            "target_tokens": int(np.sum(batch.target_segment_ids != 0)),
        }
        manifest["flops"] = _flops(params)
    manifest |= {
        "format": _FORMAT,
        "platforms": PLATFORMS,
        "versions": {
            "lingvo_moe": __version__,
            "jax": jax.__version__,
            "tensorflow": tf.__version__,
        },
        "parameters": count_weights(task.weights()),
        "shape": _shape(params),
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (output / _MANIFEST).write_text(text, encoding="utf-8")


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
