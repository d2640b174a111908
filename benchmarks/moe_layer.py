"""One MoE layer, forward and backward: dispatchers against each other and the machine's peak.

python benchmarks/moe_layer.py [--rounds=9] [--experts=8,16,64,128] [--groups=8] [--block_sizes=]
    [--cpu_time]

G groups, S tokens per group, E experts, K choices, M model, H hidden. Every round times each
variant once, and large matrix products beside them, so that load and drift hit all alike. A share
of the peak is the time that the experts' products would take at the rate of those large ones, over
the time that the whole layer took: router, gating, dispatch and all.

On a machine that others use as well, wall time says how often one was interrupted; --cpu_time
counts the time that this process had the cores, of all its threads.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from training_step import median_seconds

import lingvo_moe.tools  # noqa: F401  (silences TensorFlow's greeting)
from lingvo_moe.core.layer import Context, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Gating
from lingvo_moe.gatings.queues import route_choices
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.dispatch import Einsum, Gather, Ragged
from lingvo_moe.layers.dropless import Dropless
from lingvo_moe.layers.moe import MoE, MoEParams
from lingvo_moe.testing.peak import flops, products
from lingvo_moe.testing.tokens import tokens_of

TOKENS, MODEL, HIDDEN = 256, 256, 1024
PEAK = "peak"
_PRODUCTS = 6  # about as long as a layer takes, so that interruptions hit alike
_WEIGHTS = ([MODEL, HIDDEN], [HIDDEN, MODEL])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ById(Gating):
    """Top-1: a token goes to the expert of the number that is its id, for loads as one wants."""

    def route(self, logits, mask, capacity, context, token_ids=None):
        del context
        expert = token_ids[..., None]
        gates = tf.nn.softmax(logits)
        weight = tf.gather(gates, expert, batch_dims=2)
        return route_choices(gates, expert, weight, mask, capacity)


def ids_of(share: Sequence[float], groups: int) -> np.ndarray:
    """int32 [G, S]: in every group each expert has its share of the tokens, in random places."""
    ends = np.round(np.cumsum(share) * TOKENS / np.sum(share)).astype(int)
    ids = np.repeat(np.arange(len(share)), np.diff(ends, prepend=0))
    return np.random.default_rng(0).permuted(np.tile(ids, [groups, 1]), axis=1).astype(np.int32)


def layer_of(**params) -> MoE:
    """The layer that all tables are about."""
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=MoEParams(**params))


def step(theta: NestedMap, ids: np.ndarray, jit: bool, **params):
    """A function without arguments: one layer forward and backward, all gradients computed."""
    layer = layer_of(num_groups=ids.shape[0], **params)
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
    """A function without arguments: the products of a layer at perfect balance and nothing else.

    What no way of dispatch can beat: each expert's weights are read twice and their gradients
    written, however few its rows.
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


def seconds_at_peak(choices: int, peak_seconds: float) -> float:
    """What two products a choice, forward and twice over backward, take at the measured peak."""
    return 3 * 2 * 2 * choices * MODEL * HIDDEN / flops(_PRODUCTS) * peak_seconds


def layers(num_experts: int, groups: int, block_sizes: list[int], **timing) -> None:
    """Prints a table of the dispatchers at top-2."""
    theta = init_theta(layer_of(num_experts=num_experts).weights(), 0).map(tf.Variable)
    ids = np.zeros([groups, TOKENS], np.int32)
    common = {"num_experts": num_experts, "gating": TopK(k=2)}
    limited = common | {"capacity_factor": 2.0}
    unlimited = common | {"capacity_factor": None}
    runs = {
        PEAK: products(_PRODUCTS),
        "the experts' products alone": experts_alone(num_experts, 2 * groups * TOKENS),
        "Einsum(), capacity 2.0": step(theta, ids, False, dispatcher=Einsum(), **limited),
        "Gather(), capacity 2.0": step(theta, ids, False, dispatcher=Gather(), **limited),
        "Gather(), capacity 2.0, XLA": step(theta, ids, True, dispatcher=Gather(), **limited),
        "Ragged()": step(theta, ids, False, dispatcher=Ragged(), **unlimited),
        "Dropless(), XLA": step(theta, ids, True, dispatcher=Dropless(), **unlimited),
    }
    for size in block_sizes:
        dropless = Dropless(block_size=size)
        runs[f"{dropless}, XLA"] = step(theta, ids, True, dispatcher=dropless, **unlimited)
    seconds = median_seconds(runs, **timing)
    bound = seconds_at_peak(2 * groups * TOKENS, seconds[PEAK])
    einsum = seconds["Einsum(), capacity 2.0"]
    rate = 1e-9 * flops(_PRODUCTS) / seconds.pop(PEAK)
    print(f"\n| E = {num_experts}, peak {rate:.0f} GFLOP/s | ms | share of peak | Einsum / it |")
    print("|---|---|---|---|")
    for name, value in seconds.items():
        print(f"| `{name}` | {1e3 * value:.0f} | {bound / value:.0%} | {einsum / value:.2f} |")


def skew(groups: int, num_experts: int = 8, **timing) -> None:
    """Prints a table of loads at top-1: padding to the busiest expert, and dropless."""
    loads = {
        "balance": [1.0] * num_experts,
        "Zipf": [1.0 / (i + 1) for i in range(num_experts)],
        "all to one": [1.0] + [0.0] * (num_experts - 1),
    }
    theta = init_theta(layer_of(num_experts=num_experts).weights(), 0).map(tf.Variable)
    runs = {}
    for name, share in loads.items():
        ids = ids_of(share, groups)
        common = {"num_experts": num_experts, "gating": ById()}
        busiest = float(np.bincount(ids[0]).max() * num_experts / TOKENS)
        padded = common | {"dispatcher": Gather(), "capacity_factor": busiest}
        free = common | {"capacity_factor": None}
        runs["Gather(), padded", name] = step(theta, ids, False, **padded)
        runs["Ragged()", name] = step(theta, ids, False, dispatcher=Ragged(), **free)
        runs["Dropless(), XLA", name] = step(theta, ids, True, dispatcher=Dropless(), **free)
    seconds = median_seconds(runs, **timing)
    print(f"\n| E = {num_experts}, top-1, ms (over balance) | {' | '.join(loads)} |")
    print("|---" * (len(loads) + 1) + "|")
    for way in dict.fromkeys(way for way, _ in runs):
        base = seconds[way, "balance"]
        cells = (f"{1e3 * seconds[way, n]:.0f} ({seconds[way, n] / base:.2f})" for n in loads)
        print(f"| `{way}` | {' | '.join(cells)} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--experts", default="8,16,64,128", help="empty for none")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--block_sizes", default="", help="further sizes to try, as 16,32")
    parser.add_argument("--cpu_time", action="store_true")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    timing = {"rounds": args.rounds, "clock": clock}
    sizes = [int(size) for size in args.block_sizes.split(",") if size]
    for num_experts in (int(e) for e in args.experts.split(",") if e):
        layers(num_experts, args.groups, sizes, **timing)
    skew(args.groups, **timing)


if __name__ == "__main__":
    main()
