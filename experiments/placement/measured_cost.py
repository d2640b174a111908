"""The cost model of expert placement compared with measurements on eight virtual CPU devices.

python -m experiments.placement.measured_cost [--rounds=25] [--clock=wall]

It measures a profile. Then it measures, in the same rounds, each prediction of the model at sizes
and layouts that are not in the profile. Prints the table of placement_measured_cost.csv in
experiments/results.

Eight virtual devices share the machine's cores, so the step of a layout is measured for each device
separately: one device receives, computes and synchronises while the others are idle (except in
AllReduces). The time of the step is that of the slowest device. An AllReduce is measured with all
its devices. The tables have medians over rounds and the fastest round of each call. On a shared
machine --clock=cpu measures the processor time of this program.
"""

import argparse
import os
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
)

import jax
import numpy as np

from experiments.placement.loads import SyntheticLoads
from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.profile import Machine, probes, timed
from lingvo_moe.hardware.links import Switched
from lingvo_moe.reporting.table import Table
from lingvo_moe.testing.device_flow import device_flow

DEVICES = EXPERTS = 8
SLOTS = 2
TOKENS = (128, 512, 2048)  # profiled
SIZES = (0.5, 2.0)  # profiled, times an expert's gradients
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
STATE = 3  # weights and two slots of Adam, times an expert's gradients


def unseen(machine: Machine) -> dict[str, tuple]:
    """Name -> (call, CostModel -> seconds): every term at a size not in the profile."""

    def seconds_of_tokens(count):
        return lambda cost: cost.expert_seconds + count / cost.tokens_per_second

    cases: dict[str, tuple] = {
        f"expert, {n} tokens": (
            machine.expert_step(0, n),
            seconds_of_tokens(n),
        )
        for n in (192, 384, 768, 1536)
    }
    for n in (2, 3, 5, 6, 8):
        call = machine.all_reduce(range(n), machine.gradient_bytes)
        cases[f"AllReduce over {n}"] = (call, lambda cost, n=n: cost.all_reduce_seconds(n))
    cases["copy of weights and slots"] = (
        machine.transfer(2, 5, STATE * machine.gradient_bytes),
        lambda cost: cost.state_bytes / cost.bandwidth[2, 5],
    )
    return cases


def layouts(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, Placement]]:
    """Name -> (loads [D, E], placement): static, found by the policy maker, and random ones."""
    skewed = SyntheticLoads(
        devices=DEVICES, experts=EXPERTS, top=2, top_share=0.6, steps=1, tokens=512
    )
    loads = skewed.generate().loads[0, 0]
    static = Placement.even(DEVICES, SLOTS, EXPERTS)
    found = {"static": (loads, static)}
    guess = CostModel(
        tokens_per_second=1e5,
        bandwidth=Switched(node=DEVICES, local=1e10, remote=1e10).bandwidth(DEVICES),
        wires=Switched(node=DEVICES, local=2e9, remote=2e9),
        token_bytes=2048.0,
        gradient_bytes=1e6,
        state_bytes=0.0,
    )
    placed = static
    for move in PolicyMaker(cost=guess).plan(loads, static).moves:
        placed = move.apply(placed)
    found["planned"] = (loads, placed)
    for i in range(4):
        table = np.concatenate([np.arange(EXPERTS), rng.integers(0, EXPERTS, DEVICES)])
        loads = rng.multinomial(1024, rng.dirichlet(np.ones(EXPERTS)), DEVICES)
        found[f"random {i + 1}"] = (loads, Placement(rng.permutation(table).reshape(8, 2), EXPERTS))
    return found


def device_step(machine: Machine, flow: np.ndarray, counts: np.ndarray, device: int):
    """A function that runs one device's part of a step: receive, compute, synchronise.

    Args:
        machine: of the devices.
        flow: [E, D, H] tokens.
        counts: [E, H].
        device: its number.
    """
    arriving = [
        machine.transfer(source, device, rows * machine.token_bytes)
        for source, rows in enumerate(flow[:, :, device].sum(axis=0).tolist())
        if rows and source != device
    ]
    held = np.flatnonzero(counts[:, device])
    experts = [machine.expert_step(device, int(flow[e, :, device].sum())) for e in held]
    several = np.count_nonzero(np.count_nonzero(counts, axis=1) > 1)
    sums = several * [machine.all_reduce(range(DEVICES), machine.gradient_bytes)]

    def run():
        for part in (4 * arriving, experts, sums):
            jax.block_until_ready([call() for call in part])

    return run


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    args = parser.parse_args()
    machine = Machine(model_dim=512, hidden_dim=512)
    profiled, cases = probes(machine, TOKENS, SIZES), unseen(machine)
    flows = {
        name: (device_flow(loads, placement.counts()), placement.counts())
        for name, (loads, placement) in layouts(np.random.default_rng(0)).items()
    }
    steps = [
        device_step(machine, *flow, device) for flow in flows.values() for device in range(DEVICES)
    ]
    calls = [*profiled.calls, *(call for call, _ in cases.values()), *steps]
    seconds = timed(calls, args.rounds, CLOCKS[args.clock])
    for name, of_rounds in (("median", np.median), ("fastest", np.min)):
        print(f"\n{name} of {args.rounds} rounds")
        report(machine, profiled, cases, flows, of_rounds(seconds, axis=0))


def report(machine, profiled, cases, flows, seconds) -> None:
    """Fits the profile and compares its predictions with `seconds` of all calls, in order."""
    first, second = len(profiled.calls), len(profiled.calls) + len(cases)
    cost, errors = profiled.profile(seconds[:first]).fit(
        token_bytes=machine.token_bytes,
        gradient_bytes=machine.gradient_bytes,
        state_bytes=STATE * machine.gradient_bytes,
    )
    print("fit:", ", ".join(f"{kind} {100 * error:.1f} %" for kind, error in errors.items()))
    print(f"{cost.tokens_per_second:,.0f} tokens/s, {1e3 * cost.expert_seconds:.2f} ms per expert")
    rows = [
        _row(name, measured, predict(cost))
        for (name, (_, predict)), measured in zip(cases.items(), seconds[first:second], strict=True)
    ]
    columns = ("measured ms", "predicted ms", "error")
    print(Table(("unseen", *columns), rows).to_markdown())
    rows = []
    by_device = seconds[second:].reshape(len(flows), DEVICES)
    gaps = []
    for (name, flow), measured in zip(flows.items(), by_device, strict=True):
        predicted = cost.of_flow(*flow).total.sum(axis=0)
        rows.append(_row(name, measured.max(), predicted.max()))
        gaps.append(np.abs(predicted / measured - 1))
    print(Table(("step of a layout", *columns), rows).to_markdown())
    print(f"mean error of a device {100 * np.mean(gaps):.1f} %, largest {100 * np.max(gaps):.1f} %")


def _row(name, measured, predicted):
    error = 100 * (predicted / measured - 1)
    return name, f"{1e3 * measured:.2f}", f"{1e3 * predicted:.2f}", f"{error:+.1f} %"


if __name__ == "__main__":
    main()
