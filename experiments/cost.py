"""What a training step costs as the number of experts grows (GShard, figures 7 to 9).

python -m experiments.cost experiments/results/experts_cost.csv [--rounds=5]

Models like those of experts_width in bfloat16, with full rows of random tokens. Processor time of a
step on one device, with Muon and without an optimizer, in turns; and from the program that XLA
compiles for eight devices, each with an eighth of the experts: the size of the tensors that a
device exchanges, and its memory.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import numpy as np

from experiments.tables import write_csv
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.layer import count_weights
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.hlo import collectives, total_bytes
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.lowering import Layout, batch_specs, partition_train_step, shapes
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.training.optimizer import Optimizer
from lingvo_moe.training.schedules import Constant

ROWS = {"dense": ("model.hidden_dim=768",)} | {
    f"{n} experts": (f"model.moe=MoEParams(num_experts={n},training=Gather(groups=8))",)
    for n in (8, 32, 128, 512)
}
ROWS["32 experts in every layer"] = (
    "model.moe=MoEParams(num_experts=32,every_n=1,training=Gather(groups=8),"
    "expert=ExpertParams(hidden_dim=384))",
)
COMMON = (
    *("activation_dtype=bfloat16", "source_vocab_size=16000", "target_vocab_size=16000"),
    *("input.batch_size=40", "input.source_length=160", "input.target_length=256"),
    *("model.dropout_rate=0.0", "train.max_steps=3600"),
)
KINDS = ("all-to-all", "all-reduce", "all-gather")
COLUMNS = (
    *("", "weights, M", "ms", "ms / dense", "ms without Muon", "without Muon / dense"),
    *(f"{kind}, MB" for kind in KINDS),
    *("other, MB", "state, MB", "temporary, MB"),
)


class Plain(Optimizer):
    """Subtracts the gradient: nearly no time beside that of the gradient."""

    def weight_slots(self, spec):
        """None."""
        return NestedMap()

    def update_weight(self, weight, slots, grad, spec, rate, count):
        """The gradient times the rate."""
        return rate * grad, slots


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows: list[list[str]] = []
    first: list[float] = []
    for name, overrides in ROWS.items():
        task = TranslationTask(registered("small.Narrow", [*COMMON, *overrides]))
        weights = f"{count_weights(task.weights()) / 1e6:.1f}"
        times = _milliseconds(task, args.rounds)
        first = first or times
        ratios = [f"{ms / base:.2f}" for ms, base in zip(times, first, strict=True)]
        pairs = [f"{times[0]:.0f}", ratios[0], f"{times[1]:.0f}", ratios[1]]
        rows.append([name, weights, *pairs, *_on_eight_devices(task)])
        print(rows[-1], flush=True)
    write_csv(args.output, Table(COLUMNS, rows))


def _milliseconds(task, rounds):
    """Medians of the processor time of a step: with the model's optimizer, and with Plain."""
    step = train_step(task)
    plain = dataclasses.replace(step, optimizer=Plain(schedule=Constant(learning_rate=1e-6)))
    runtimes, batch = [Local(task, step), Local(task, plain)], _batch(task.params)
    for runtime in runtimes:
        runtime.initialize(0)
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        seconds.append([])
        for runtime in runtimes:
            start = time.process_time()
            runtime.train(batch).tokens.numpy()
            seconds[-1].append(time.process_time() - start)
    return [1e3 * median for median in np.median(seconds[1:], axis=0)]  # the first one compiles


def _batch(params):
    rng, p = np.random.default_rng(0), params.input
    batch = {}
    for side, length in (("source", p.source_length), ("target", p.target_length)):
        shape = p.batch_size, length
        batch[f"{side}_segment_ids"] = np.ones(shape, np.int32)
        batch[f"{side}_pair_ids"] = np.zeros(shape, np.int32)
        for name in ("source_ids",) if side == "source" else ("target_ids", "target_inputs"):
            batch[name] = rng.integers(4, 16_000, shape, np.int32)
    return batch


def _on_eight_devices(task):
    layout = Layout(parse_mesh("expert:8"), task.params.sharding)
    specs = batch_specs(_batch(task.params))
    program, args = partition_train_step(train_step(task), specs, layout)
    compiled = program.lower(*shapes(args)).compile()
    sizes = total_bytes(collectives(compiled.as_text()))
    moved = [sizes.pop(kind, 0) for kind in KINDS]
    memory = compiled.memory_analysis()
    here = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return [f"{size / 1e6:.1f}" for size in (*moved, sum(sizes.values()), *here)]


if __name__ == "__main__":
    main()
