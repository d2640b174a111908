"""Writes a training step as StableHLO, and a program that runs it without TensorFlow.

python benchmarks/gpu_export.py OUTPUT --model=tiny.MoE [--set=activation_dtype=bfloat16 ...]

OUTPUT holds manifest.json, which describes the programs; train.stablehlo and initialize.stablehlo
(jax.export, for CPU and CUDA), which draws the initial state; batch.npz, arrays by name; and
run.py, which trains with JAX alone. `make gpu-export` makes those that gpu_step.py measures.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is computed here

import jax
import numpy as np

from lingvo_moe import __version__, api
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.data.dataset import Example
from lingvo_moe.data.packing import pack
from lingvo_moe.data.vocabulary import UNK
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.planning.costs import count_costs
from lingvo_moe.runtimes.lowering import ArraySpec
from lingvo_moe.sbp.types import Mesh
from lingvo_moe.serving import stablehlo
from lingvo_moe.system import npz
from lingvo_moe.system.files import new_directory
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import typical
from lingvo_moe.tasks.translation import TranslationTask


def export(name: str, changes: Sequence[str], output: Path) -> None:
    """Writes the step of a registered model with `--set` texts; replaces an earlier one."""
    params = typical(override(api.params(name), changes))
    with new_directory(output, "gpu_export.py", overwrite=True) as directory:
        write(name, params, directory)
        shutil.copyfile(Path(__file__).with_name("_gpu_run.py"), directory / "run.py")


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
    task = stablehlo.static(TranslationTask(params))
    programs = {
        "initialize": stablehlo.initialize_program(task),
        "train": stablehlo.train_program(task),
    }
    described = {}
    for program_name, program in programs.items():
        file = f"{program_name}.stablehlo"
        (output / file).write_bytes(stablehlo.lower(program).serialize())
        described[program_name] = {
            "file": file,
            "arguments": [_described(specs) for specs in program.arguments],
            "donated": list(program.donated),
        }
    batch = example_batch(params, len(task.pairs))
    npz.save(output / "batch.npz", compress=False, **batch)
    manifest = {
        "model": name,
        "params": to_fields(params),
        "programs": described,
        "seed": params.train.seed,
        "batch": {
            "file": "batch.npz",
            "source_tokens": int(np.sum(batch.source_segment_ids != 0)),
            "target_tokens": int(np.sum(batch.target_segment_ids != 0)),
        },
        "flops": _flops(params),
        "platforms": stablehlo.PLATFORMS,
        "versions": {"lingvo_moe": __version__, "jax": jax.__version__},
        "parameters": count_weights(task.weights()),
        "shape": _shape(params),
    }
    (output / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", default=[], help="PARAM=VALUE; repeat it")
    given = parser.parse_args()
    export(given.model, given.set, given.output)
