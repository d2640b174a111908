"""Training of a small model on a mesh of virtual devices, and on one device."""

import contextlib
import functools
import json
import sys

import numpy as np

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork, wait_for_all
from lingvo_moe.testing.tiny_world import SHRINK

ROWS, LENGTH, PAIRS = 8, 12, ("a-b", "c-d")
PARAMS = (
    *SHRINK,
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.moe.every_n=1",
    "model.moe.training=Einsum(groups=8)",
    "source_vocab_size=64",
    "target_vocab_size=64",
)

# A float32 sum depends on the order, by about one part in 2^24 for each addition, and each device
# adds its own numbers first. So each step has errors of about 1e-7, which grow during training.
TOLERANCE = 2e-6
MESH = "data:2,expert:4"  # of eight devices


def make_task(overrides=()):
    """The task, with these `--set` texts."""
    return TranslationTask(override(get_params("tiny.MoE"), [*PARAMS, *overrides]), PAIRS)


def make_batch(step):
    """Random tokens; two sentences per row, and padding of random length."""
    rng = np.random.default_rng(step)
    batch = {}
    pair = rng.integers(0, len(PAIRS), (ROWS, 1))
    for side in ("source", "target"):
        ends = np.sort(rng.integers(1, LENGTH, (ROWS, 2)), axis=1)
        position = np.arange(LENGTH)
        segments = 1 + (position >= ends[:, :1]) - 2 * (position >= ends[:, 1:])
        batch[f"{side}_segment_ids"] = np.maximum(segments, 0)
        batch[f"{side}_pair_ids"] = np.broadcast_to(pair, (ROWS, LENGTH))
    for name in ("source_ids", "target_ids", "target_inputs"):
        batch[name] = rng.integers(4, 64, (ROWS, LENGTH))
    return {name: value.astype(np.int32) for name, value in batch.items()}


def train(runtime, steps):
    """The negative log-likelihood and the gradient's norm of each step."""
    metrics = [runtime.train(make_batch(step)) for step in range(steps)]
    return [[float(m.nll), float(m.grad_norm)] for m in metrics]


@functools.cache
def local(steps, *overrides):
    """A trained local runtime with these `--set` texts, its initial state, and its metrics."""
    task = make_task(overrides)
    runtime = Local(task, train_step(task))
    runtime.initialize(3)
    before = {name: value.numpy() for name, value in runtime.state().items()}
    return runtime, before, train(runtime, steps)


@functools.cache
def run(mesh, steps, *overrides, devices=8, processes=1):
    """The metrics of `train` on a mesh, with these `--set` texts, process by process."""
    address = free_address()
    started = [
        Fork(
            __file__,
            *(mesh, str(steps), address, str(i), str(processes), *overrides),
            variables=variables(devices),
        )
        for i in range(processes)
    ]
    ended = wait_for_all(started)
    failed = [process.stderr[-3000:] for process in ended if process.returncode]
    assert not failed, failed[0]
    return [json.loads(process.stdout.splitlines()[-1]) for process in ended]


def main(mesh, steps, address, index, processes, *overrides):
    """Trains on a mesh and prints the metrics as JSON."""
    from lingvo_moe.runtimes.lowering import Layout
    from lingvo_moe.runtimes.processes import join_processes
    from lingvo_moe.runtimes.spmd import Spmd
    from lingvo_moe.sbp.types import parse_mesh

    together = join_processes(address, int(index), int(processes))
    with together if int(processes) > 1 else contextlib.nullcontext():
        task = make_task(overrides)
        layout = Layout(parse_mesh(mesh), task.params.sharding)
        runtime = Spmd(task, train_step(task), layout)
        runtime.initialize(3)
        print(json.dumps(train(runtime, int(steps))))


if __name__ == "__main__":
    main(*sys.argv[1:])
