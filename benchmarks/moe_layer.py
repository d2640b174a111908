"""One MoE layer, forward and backward: dispatchers compared with each other and with the peak.

python benchmarks/moe_layer.py [--rounds=9] [--experts=8,16,64,128] [--groups=8] [--cpu_time]

G groups, S tokens per group, E experts, K choices, M model, H hidden. Every round times each
variant and large matrix products once, so that changes of the machine's speed affect all of them.
The share of the peak is the time of the experts' products at the rate of the large products,
divided by the time of the whole layer with router, gating and dispatch. Memory under skew is
measured in a separate process for each variant and load, because the peak of a process never falls.

On a shared machine use --cpu_time: the processor time of all threads of this process.
"""

import argparse
import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from training_step import seconds_in_turn

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.queues import route_choices
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.reporting.table import Table
from lingvo_moe.testing.peak import flops, products
from lingvo_moe.testing.published_moe import Published
from lingvo_moe.testing.tokens import tokens_of

TOKENS, MODEL, HIDDEN = 256, 256, 1024
PEAK = "peak"
_PRODUCTS = 6  # take about as long as a layer, so that interruptions affect both equally
_WEIGHTS = ([MODEL, HIDDEN], [HIDDEN, MODEL])
_SKEWED = 8  # the experts of the tables of loads
_PROCESSES = 3
# Each expert's share of the tokens, up to a constant factor.
LOADS = {
    "balance": [1.0] * _SKEWED,
    "Zipf": [1.0 / (i + 1) for i in range(_SKEWED)],
    "all to one": [1.0] + [0.0] * (_SKEWED - 1),
}
# The policy by the capacity factor of the busiest expert, and whether XLA compiles it.
WAYS = {
    "Gather(), padded": (lambda busiest: Gather(capacity_factor=busiest), False),
    "Ragged()": (lambda _: Ragged(), False),
    "Dropless(), XLA": (lambda _: Dropless(), True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ById(Gating):
    """Top-1: a token's id is the index of its expert, to choose the loads."""

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        del context
        expert = extras.token_ids[..., None]
        gates = tf.nn.softmax(logits)
        weight = tf.gather(gates, expert, batch_dims=2)
        return route_choices(gates, expert, weight, mask, capacity)


def ids_of(share: Sequence[float], groups: int) -> np.ndarray:
    """int32 [G, S]: in every group each expert has its share of the tokens, in random places."""
    ends = np.round(np.cumsum(share) * TOKENS / np.sum(share)).astype(int)
    ids = np.repeat(np.arange(len(share)), np.diff(ends, prepend=0))
    return np.random.default_rng(0).permuted(np.tile(ids, [groups, 1]), axis=1).astype(np.int32)


def layer_of(**params) -> MoE:
    """The layer of all tables."""
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=MoEParams(**params))


def step(theta: NestedMap, ids: np.ndarray, jit: bool = False, **params):
    """A function without arguments: that layer forward and backward, all gradients computed."""
    params["training"] = dataclasses.replace(params["training"], groups=ids.shape[0])
    return backward(layer_of(**params), theta, ids, jit)


def backward(layer: MoE | Published, theta: NestedMap, ids: np.ndarray, jit: bool = False):
    """A function without arguments that computes all gradients and returns those of the inputs."""
    inputs = tf.random.stateless_normal([*ids.shape, MODEL], [1, 2])
    upstream = tf.random.stateless_normal(inputs.shape, [3, 4])

    @tf.function(autograph=False, jit_compile=jit)
    def run(inputs, upstream, ids):
        values = theta.map(lambda variable: variable.value())
        tokens = tokens_of(tf.ones(ids.shape, tf.bool), ids)
        with tf.GradientTape() as tape:
            tape.watch([inputs, values])
            output = layer.fprop(values, inputs, tokens, Context(tf.constant([5, 6])))
            objective = tf.reduce_sum(output.outputs * upstream) + output.loss
        return tape.gradient(objective, [inputs, values])

    arguments = inputs, upstream, tf.constant(ids)
    return lambda: run(*arguments)[0].numpy()


def experts_alone(num_experts: int, choices: int):
    """A function without arguments: only the products of a layer at perfect balance.

    It is a lower bound for all dispatchers: the weights of each expert are read twice and their
    gradients written, even for few rows.
    """
    rows = tf.random.stateless_normal([num_experts, choices // num_experts, MODEL], [1, 2])
    wi, wo = (tf.random.stateless_normal([num_experts, *s], [3, 4]) for s in _WEIGHTS)

    @tf.function(autograph=False)
    def run():
        hidden = tf.matmul(rows, wi)
        outputs = tf.matmul(hidden, wo)
        d_hidden = tf.matmul(outputs, wo, transpose_b=True)
        d_wo = tf.matmul(hidden, outputs, transpose_a=True)
        d_wi = tf.matmul(rows, d_hidden, transpose_a=True)
        return tf.matmul(d_hidden, wi, transpose_b=True), d_wo, d_wi

    return lambda: run()[0].numpy()


def seconds_at_peak(choices: int, peak_seconds: np.ndarray) -> np.ndarray:
    """Seconds of two products a choice, forward and twice backward, at the measured peak."""
    return 3 * 2 * 2 * choices * MODEL * HIDDEN / flops(_PRODUCTS) * peak_seconds


def layers(num_experts: int, groups: int, **timing) -> None:
    """Prints a table of the dispatchers at top-2."""
    theta = init_theta(layer_of(num_experts=num_experts).weights(), 0).map(tf.Variable)
    ids = np.zeros([groups, TOKENS], np.int32)
    common: dict[str, Any] = {"num_experts": num_experts, "gating": TopK(k=2)}
    published = backward(Published(num_experts, 2 * TOKENS // num_experts), theta, ids)
    runs = {
        PEAK: products(_PRODUCTS),
        "the experts' products alone": experts_alone(num_experts, 2 * groups * TOKENS),
        "as published, capacity 2.0": published,
        "Einsum(), capacity 2.0": step(theta, ids, training=Einsum(), **common),
        "Gather(), capacity 2.0": step(theta, ids, training=Gather(), **common),
        "Gather(), capacity 2.0, XLA": step(theta, ids, jit=True, training=Gather(), **common),
        "Ragged()": step(theta, ids, training=Ragged(), **common),
        "Dropless(), XLA": step(theta, ids, jit=True, training=Dropless(), **common),
    }
    for name, run in runs.items():
        if "capacity 2.0" in name:  # these drop the same choices
            np.testing.assert_allclose(run(), published(), rtol=1e-3, atol=1e-3, err_msg=name)
    seconds = seconds_in_turn(runs, **timing)
    peak = seconds.pop(PEAK)
    bound = seconds_at_peak(2 * groups * TOKENS, peak)
    base = seconds["as published, capacity 2.0"]
    rate = 1e-9 * flops(_PRODUCTS) / np.median(peak)
    title = f"E = {num_experts}, peak {rate:.0f} GFLOP/s"
    rows = []
    for name, value in seconds.items():
        share, gain = np.median(bound / value), np.median(base / value)
        rows.append((f"`{name}`", f"{1e3 * np.median(value):.0f}", f"{share:.0%}", f"{gain:.2f}"))
    print(f"\n{Table((title, 'ms', 'share of peak', 'published / time'), rows).to_markdown()}")


def skewed_step(way: str, load: str, groups: int) -> Callable[[], object]:
    """A step of the layer with eight experts and top-1, for a dispatcher and a load."""
    theta = init_theta(layer_of(num_experts=_SKEWED).weights(), 0).map(tf.Variable)
    ids = ids_of(LOADS[load], groups)
    busiest = float(np.bincount(ids[0]).max() * _SKEWED / TOKENS)
    policy, jit = WAYS[way]
    given = {"gating": ById(), "training": policy(busiest)}
    return step(theta, ids, jit, num_experts=_SKEWED, **given)


def skew(groups: int, **timing) -> None:
    """Prints tables of time and memory by load, for padding to the busiest expert and dropless."""
    pairs = [(way, load) for way in WAYS for load in LOADS]
    seconds = seconds_in_turn({pair: skewed_step(*pair, groups) for pair in pairs}, **timing)
    _print_over_balance("ms", {pair: 1e3 * seconds[pair] for pair in pairs})
    _print_over_balance("MB", {pair: megabytes(*pair, groups) for pair in pairs})


def megabytes(way: str, load: str, groups: int) -> np.ndarray:
    """Peak memory of steps, minus that of the process before, for some processes."""
    command = [sys.executable, __file__, f"--groups={groups}", "--memory_of", way, load]
    runs = (subprocess.run(command, check=True, capture_output=True) for _ in range(_PROCESSES))
    return np.array([float(run.stdout.split()[-1]) for run in runs])


def print_memory(way: str, load: str, groups: int) -> None:
    """Prints the peak of this process, which runs nothing else, in MB."""
    run = skewed_step(way, load, groups)
    held = _peak_kilobytes()
    for _ in range(5):  # the allocator's pools are full after these
        run()
    print((_peak_kilobytes() - held) / 1024)


def _peak_kilobytes() -> int:
    # getrusage would include the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def _print_over_balance(unit: str, figures: dict[tuple[str, str], np.ndarray]) -> None:
    rows = []
    for way in WAYS:
        base = figures[way, "balance"]
        of_loads = (figures[way, load] for load in LOADS)
        cells = (f"{np.median(x):.0f} ({np.median(x / base):.2f})" for x in of_loads)
        rows.append((f"`{way}`", *cells))
    title = f"E = {_SKEWED}, top-1, {unit} (ratio to balance)"
    print(f"\n{Table((title, *LOADS), rows).to_markdown()}")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--experts", default="8,16,64,128", help="empty for none")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--cpu_time", action="store_true", help="measure processor time")
    parser.add_argument("--memory_of", nargs=2, help=argparse.SUPPRESS)  # a way and a load
    args = parser.parse_args()
    if args.memory_of:
        way, load = args.memory_of
        print_memory(way, load, args.groups)
        return
    clock = time.process_time if args.cpu_time else time.perf_counter
    timing = {"rounds": args.rounds, "clock": clock}
    for num_experts in (int(e) for e in args.experts.split(",") if e):
        layers(num_experts, args.groups, **timing)
    skew(args.groups, **timing)


if __name__ == "__main__":
    main()
