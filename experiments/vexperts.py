"""A step of one MoE layer on eight virtual devices, with skewed loads that drift.

python -m experiments.vexperts [--steps=60] [--skew=0,1,1.5] [--tokens=512]

It compares dropless experts that do not move (`Dropless`), experts that move (`VExperts`; times
include the scheduler and its moves), and capacity 2.0, which drops tokens (`Gather`), on the
same batches. Eight virtual devices share the machine's cores, so the time of a step is the compute
time of all devices together. Shapes are static, so this is eight times the compute of the busiest
device, padding included. Virtual devices communicate through memory, so exchange, synchronisation
and copies are far cheaper than over a network. With --timeline=FILE it times moves.

M model, H hidden, E experts.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
import tensorflow as tf

from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.profile import Machine, measure
from lingvo_moe.flexmoe.rebalance import Rebalanced
from lingvo_moe.flexmoe.scheduler import Scheduler
from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.dispatch import Dispatcher, Gather
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.lowering import ArraySpec, Layout, partitioned
from lingvo_moe.runtimes.spmd import Spmd
from lingvo_moe.sbp.types import parse_mesh
from lingvo_moe.testing.regression import Regression
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.optimizer import Optimizer
from lingvo_moe.training.replicas import Copy
from lingvo_moe.training.schedules import Constant
from lingvo_moe.training.step import TrainStep

DEVICES = EXPERTS = 8
MODEL, HIDDEN = 256, 1024
PERIOD = 200  # steps of one rotation of the popularity


def task(dispatcher: Dispatcher) -> Any:
    """One MoE layer; its router uses the first E elements of a token as scores (`starting`)."""
    return Regression(
        dispatcher, groups=DEVICES, num_experts=EXPERTS, model_dim=MODEL, hidden_dim=HIDDEN
    )


def batch(step: int, skew: float, tokens: int) -> dict[str, np.ndarray]:
    """Tokens whose elements select two experts; the popular experts rotate over all experts."""
    rng = np.random.default_rng(step)
    angle = 2 * np.pi * (np.arange(EXPERTS) / EXPERTS - step / PERIOD)
    scores = skew * np.cos(angle) + rng.gumbel(size=(DEVICES, tokens, EXPERTS))
    order = np.argsort(-scores, axis=-1)
    inputs = 0.1 * rng.normal(size=(DEVICES, tokens, MODEL))
    for place, share in enumerate((3.0, 2.0)):
        inputs[..., :EXPERTS] += share * np.eye(EXPERTS)[order[..., place]]
    return {"inputs": inputs.astype(np.float32)}


def starting(task: Any, scheduler: Scheduler | None, kind: type[Optimizer] = Adafactor) -> Any:
    """A runtime on eight devices, whose weights change only by rounding."""
    optimizer = kind(schedule=Constant(learning_rate=1e-12))
    step = TrainStep(task=task, optimizer=optimizer, rungs=task.rungs)
    runtime: Any = Spmd(task, step, Layout(parse_mesh(f"expert:{DEVICES}")))
    if scheduler:
        runtime = Rebalanced(runtime, {"placement": EXPERTS}, scheduler)
    runtime.initialize(0)
    gate = np.zeros((MODEL, EXPERTS), np.float32)
    gate[:EXPERTS] = 4 * np.eye(EXPERTS)
    state = {name: np.asarray(value) for name, value in runtime.state().items()}
    runtime.restore(state | {"theta/gate": gate})
    return runtime


def schedule() -> Scheduler:
    """The scheduler, with measured rates of these devices."""
    machine = Machine(model_dim=MODEL, hidden_dim=HIDDEN)
    state_bytes = 4 * (2 * MODEL * HIDDEN + 2 * (MODEL + HIDDEN))  # Adafactor's rows and columns
    cost, _ = measure(machine).fit(
        token_bytes=machine.token_bytes,
        gradient_bytes=machine.gradient_bytes,
        state_bytes=state_bytes,
    )
    return Scheduler(maker=PolicyMaker(cost=cost))


def race(skew: float, args: argparse.Namespace, scheduler: Scheduler) -> None:
    """Prints a table."""
    ways = {
        "Gather(), capacity 2.0": (task(Gather()), None),
        "Dropless()": (task(Dropless()), None),
        "VExperts(8, 2)": (task(VExperts(devices=8, slots_per_device=2)), scheduler),
        "VExperts(8, 4)": (task(VExperts(devices=8, slots_per_device=4)), scheduler),
    }
    runtimes = {name: starting(*way) for name, way in ways.items()}
    seconds: dict[str, list] = {name: [] for name in ways}
    kept: dict[str, list] = {name: [] for name in ways}
    for step in range(args.steps):
        fed = batch(step, skew, args.tokens)
        for name, runtime in runtimes.items():
            wall, cpu = time.perf_counter(), time.process_time()
            metrics = jax.block_until_ready(dict(runtime.train(fed)))
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
            kept[name].append(metrics)
    base = np.array(seconds["Dropless()"])
    counted = slice(args.steps // 3, None)
    columns = (
        *(f"skew {skew:g}", "ms", "time / Dropless", "processor time / Dropless", "dropped"),
        *("balance ratio", "moves", "rungs"),
    )
    rows = []
    for name, metrics in kept.items():
        taken = np.array(seconds[name])
        wall, cpu = np.median((taken / base)[counted], axis=0)
        late = metrics[counted]
        ratio, moves = (
            f"{np.mean([m[key][0] for m in late]):.2f}" if key in late[0] else "–"
            for key in ("balance_ratio", "moves")
        )
        rungs = sorted({int(m["rung"]) for m in late}) if "rung" in late[0] else "–"
        choices = 2 * DEVICES * args.tokens
        dropped = f"{np.mean([m['dropped'] for m in late]) / choices:.1%}"
        taken_ms = f"{1e3 * np.median(taken[counted, 0]):.0f}"
        cells = (taken_ms, f"{wall:.2f}", f"{cpu:.2f}", dropped, ratio, moves, str(rungs))
        rows.append((f"`{name}`", *cells))
    print(f"\n{Table(columns, rows).to_markdown()}")


def by_a_sum(runtime: Any) -> Any:
    """A move as a program of all devices: Copy -> the tensors of the experts."""
    specs = {name: spec for name, spec in runtime._specs.items() if "/experts/" in name}
    pair = {name: ArraySpec((1,), "int32", ".") for name in ("target", "source")}

    def move(held, pair):
        rows = {name: tf.gather(tensor, pair.source)[0] for name, tensor in held.items()}
        return {n: tf.tensor_scatter_nd_update(held[n], [pair.target], [rows[n]]) for n in rows}

    program = partitioned(move, [specs, pair], specs, runtime._layout, donate=(0,))
    return lambda one: program(
        {name: runtime._state[name] for name in specs},
        {name: np.array([getattr(one, name)], np.int32) for name in pair},
    )


def timeline(args: argparse.Namespace) -> None:
    """Prints times of steps after moves that change no slot: none, that of training, by a sum."""
    runtime = starting(task(VExperts(devices=8, slots_per_device=4)), None, AdamW)
    pairs = [Copy(4 * one + 2, 4 * ((one + 1) % DEVICES)) for one in range(DEVICES)]
    runtime.relocate("placement", [*pairs, *(Copy(one.target + 1, one.source) for one in pairs)])
    summed, fed, events = by_a_sum(runtime), batch(0, 1.0, args.tokens), []
    spent: dict[str, list] = {"none": [], "two devices": [], "all devices": []}
    for number in range(args.steps * 3):
        kind, one = list(spent)[number % 3], pairs[number // 3 % DEVICES]
        times = [time.perf_counter()]
        if kind == "two devices":
            runtime.relocate("placement", [one])
        elif kind == "all devices":
            runtime._state |= jax.block_until_ready(summed(one))
        times.append(time.perf_counter())
        runtime.train(fed)
        jax.block_until_ready(runtime._state)
        times.append(time.perf_counter())
        spent[kind].append(np.diff(times))
        for i, name in enumerate((f"move: {kind}", "step")):
            event = {"name": name, "ph": "X", "pid": 0, "tid": i, "ts": round(1e6 * times[i])}
            events.append(event | {"dur": round(1e6 * spent[kind][-1][i])})
    Path(args.timeline).write_text(json.dumps({"traceEvents": events}))
    medians = {kind: 1e3 * np.median(found[DEVICES:], axis=0) for kind, found in spent.items()}
    rows = [(kind, *(f"{each:.1f}" for each in found)) for kind, found in medians.items()]
    print(f"\n{Table(('move', 'ms before the step', 'of the step'), rows).to_markdown()}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--skew", default="0,1,1.5", help="of the loads, one table for each")
    parser.add_argument("--tokens", type=int, default=512, help="of a device")
    parser.add_argument("--timeline", help="a .json file to write, for Chrome's trace viewer")
    args = parser.parse_args()
    if args.timeline:
        timeline(args)
        return
    scheduler = schedule()
    for skew in map(float, args.skew.split(",")):
        race(skew, args, scheduler)


if __name__ == "__main__":
    main()
