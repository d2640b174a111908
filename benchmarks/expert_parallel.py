"""One MoE layer on eight virtual devices: dropless against padding to the busiest expert.

python benchmarks/expert_parallel.py [--loads=even,zipf_0.5] [--draws=1] [--rounds=3]

64 experts, 2,048 tokens on each device, top-1, forward and backward. `Dropless` runs on the rung of
its ladder that the load needs; the baseline is `Gather` with the lowest capacity factor
1.25^n that fits the busiest expert of a device, up to the number of experts. Printed for both: rows
that the busiest device computes, rows that a device sends in an AllToAll, both counted in the
program, and the processor time, which is the work of all devices together. Communication is a copy
in memory.
"""

import argparse
import dataclasses
import math
import os
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
import tensorflow as tf

from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.dispatch import Dispatcher, Gather
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.hlo import collectives
from lingvo_moe.runtimes.lowering import ArraySpec, Layout, partitioned, shapes
from lingvo_moe.sbp.types import Mesh

DEVICES, TOKENS, EXPERTS, MODEL = 8, 2048, 64, 128
CONTEXT = Context(np.array([1, 2], np.int32))


def shares(load: str) -> np.ndarray:
    """The experts' shares of the tokens."""
    if load == "ten":  # ten experts take 75 %
        share = np.where(np.arange(EXPERTS) < 10, 0.075, 0.25 / (EXPERTS - 10))
    elif load == "one":
        share = np.eye(EXPERTS)[0]
    else:
        share = (1.0 + np.arange(EXPERTS)) ** -float(
            load.removeprefix("zipf_").replace("even", "0")
        )
    return share / share.sum()


def draw(load: str, seed: int) -> np.ndarray:
    """int32 [devices, tokens]: an expert for each token; the busy experts are in random places."""
    rng = np.random.default_rng(seed)
    share = rng.permutation(shares(load))
    return rng.choice(EXPERTS, (DEVICES, TOKENS), p=share).astype(np.int32)


def layer_of(policy: Dispatcher, hidden: int) -> MoE:
    """The layer; its router takes the first E elements of a token as scores."""
    policy = dataclasses.replace(policy, groups=DEVICES)
    params = MoEParams(num_experts=EXPERTS, gating=Switch(), training=policy)
    return MoE(model_dim=MODEL, hidden_dim=hidden, params=params)


def program(policy: Dispatcher, hidden: int) -> Any:
    """The compiled layer: (weights, values) -> gradients, and statistics of the busiest device."""
    layer = layer_of(policy, hidden)
    specs = {n: ArraySpec(s.shape, "float32", s.dims) for n, s in layer.weights().flatten()}
    given = {"values": ArraySpec((DEVICES, TOKENS, MODEL), "float32", "B..")}
    counted = {"rows": ArraySpec((), "float32", "")}

    def run(flat, given):
        theta, ones = NestedMap.unflatten(flat), tf.ones([DEVICES, TOKENS], tf.int32)
        with tf.GradientTape() as tape:
            theta.map(tape.watch)
            tape.watch(given.values_)
            output = layer.fprop(theta, given.values_, Tokens(ones, ones), CONTEXT)
            total = tf.reduce_sum(tf.sin(output.outputs))
        by_theta, by_values = tape.gradient(total, [theta, given.values_])
        rows = output.stats.get("device_rows", EXPERTS * output.stats.capacity)
        lost = output.stats.get("lost", 0.0) + tf.reduce_sum(output.routing.dropped)
        return {**dict(by_theta.flatten()), "values_": by_values, "rows": rows, "lost": lost}

    args = [specs, {"values_": given["values"]}]
    results = {**specs, "values_": given["values"], **counted, "lost": counted["rows"]}
    layout = Layout(Mesh(("expert",), (DEVICES,)))
    return partitioned(run, args, results, layout).lower(*shapes(args)).compile()


def measure(load: str, draws: int, rounds: int, hidden: int) -> list[tuple[float, ...]]:
    """For each way the rows of the busiest device, the rows of an AllToAll, and seconds."""
    theta = init_theta(layer_of(Gather(), hidden).weights(), 0)
    theta.gate = 4.0 * tf.eye(MODEL, EXPERTS)
    weights = {name: np.asarray(value) for name, value in theta.flatten()}
    programs: dict[Dispatcher, Any] = {}
    found: list[list[tuple[float, ...]]] = [[], []]
    for seed in range(draws):
        expert, rng = draw(load, seed), np.random.default_rng(seed)
        values = rng.normal(size=(DEVICES, TOKENS, MODEL)).astype(np.float32) / 4
        values[..., :EXPERTS] += 4 * np.eye(EXPERTS, dtype=np.float32)[expert]
        gradients = []
        for way, policy in enumerate(policies_for(expert)):
            if load == "one" and way:  # padded, all gradients would need tens of gigabytes
                continue
            if policy not in programs:
                programs[policy] = program(policy, hidden)
            compiled, seconds = programs[policy], []
            for _ in range(rounds + 1):
                start = time.process_time()
                result = jax.block_until_ready(compiled(weights, {"values_": values}))
                seconds.append(time.process_time() - start)
            assert result["lost"] == 0, (policy, result["lost"])
            gradients.append({n: np.asarray(x) for n, x in result.items() if n != "rows"})
            kinds = collectives(compiled.as_text())
            sent = max(c.bytes for c in kinds if c.kind == "all-to-all") / (4 * MODEL)
            found[way].append((float(result["rows"]), sent, np.median(seconds[1:])))
        for name, value in gradients[-1].items():
            np.testing.assert_allclose(value, gradients[0][name], rtol=1e-3, atol=1e-4)
    return [tuple(np.mean(way, axis=0)) if way else (math.nan,) * 3 for way in found]


def policies_for(expert: np.ndarray) -> tuple[Dispatcher, Dispatcher]:
    """The lowest rungs that fit."""
    of_expert = [np.bincount(one, minlength=EXPERTS).max() * EXPERTS / TOKENS for one in expert]
    of_device = [
        np.bincount(one // (EXPERTS // DEVICES), minlength=DEVICES).max() * DEVICES / TOKENS
        for one in expert
    ]
    to_busiest, to_pair = (math.ceil(math.log(max(x), 1.25)) for x in (of_expert, of_device))
    padded = Gather(capacity_factor=min(1.25**to_busiest, float(EXPERTS)))
    return Dropless(rung=max(0, to_pair - 1)), padded


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", default="even,zipf_0.25,zipf_0.5,zipf_1,ten,one")
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    args = parser.parse_args()
    rows = []
    for load in args.loads.split(","):
        ours, padded = measure(load, args.draws, args.rounds, args.hidden)
        pairs = [f"{a:,.0f} / {b:,.0f}" for a, b in zip(ours[:2], padded[:2], strict=True)]
        rows.append((load, *pairs, f"{1e3 * ours[2]:.0f}", f"{padded[2] / ours[2]:.2f}"))
        print(*rows[-1], flush=True)
    columns = ("load", "rows computed", "rows sent", "ms", "padded / dropless time")
    print(Table(columns, rows).to_markdown())


if __name__ == "__main__":
    main()
