"""When separate experts are faster than one product: the measurement behind `faster_together`.

python benchmarks/separate_experts.py [--threads=1] [--rounds=5]

A chain of layers of experts runs twice: with `Ragged` that computes each expert separately, and
with all experts as one product, padded to the busiest. Both read more weights than caches hold. N
tokens have two choices each; M model, H hidden, E experts. "Rows" is the smallest value of
`Experts.separate_rows` with which `faster_together` chooses one product for these loads. Processor
time.
"""

import argparse
import dataclasses
import time

import numpy as np
import tensorflow as tf
from training_step import seconds_in_turn

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.core.layer import EVALUATION, Context, count_weights, init_theta
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.queues import route_choices
from lingvo_moe.layers.dispatch import Ragged, faster_together
from lingvo_moe.layers.experts import HeldExperts
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.reporting.table import Table

_SHAPES = ((128, 512), (256, 1024))  # M and H
_WEIGHTS = 16 << 20  # at least so many in a chain, 64 MiB
# name -> context, and the numbers of tokens for 8 and for 64 experts
_MODES = {
    "decoding": (EVALUATION, {8: (16, 64), 64: (16, 64)}),
    "training": (Context(np.array([1, 2], np.int32)), {8: (64, 256), 64: (256, 1024)}),
}
_COLUMNS = (
    *("", "M", "H", "E", "N", "busiest", "rows"),
    *("separate, ms", "one product, ms", "separate / one product"),
)
_EVENNESS = 0.6  # standard deviation of the logarithm of an expert's share


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    rows = []
    for mode, (context, tokens) in _MODES.items():
        for model, hidden in _SHAPES:
            network = FeedForward(model_dim=model, hidden_dim=hidden)
            cases = [(e, n) for e in tokens for n in tokens[e]]
            for experts, count in cases:
                expert = _choices(count, experts)
                times = _times(network, experts, expert, context, args.rounds)
                separate, one = (1e3 * value.min() for value in times)
                sizes = mode, model, hidden, experts, count, *_limit(expert, experts)
                ratio = f"{separate / one:.2f}"
                rows.append([*map(str, sizes), f"{separate:.2f}", f"{one:.2f}", ratio])
    print(Table(_COLUMNS, rows).to_markdown())


def _choices(count: int, experts: int) -> np.ndarray:
    """Two different experts for each token, int32 [1, N, 2]."""
    rng = np.random.default_rng(0)
    share = np.exp(_EVENNESS * rng.normal(size=experts))
    draw = [rng.choice(experts, 2, replace=False, p=share / share.sum()) for _ in range(count)]
    return np.array([draw], np.int32)


def _limit(expert: np.ndarray, experts: int) -> tuple[int, int]:
    """The rows of the busiest expert, and the smallest separate_rows that choose one product."""
    sizes = np.bincount(expert.ravel(), minlength=experts)
    together = (
        rows for rows in range(10_000) if faster_together(tf.constant(sizes, tf.int32), rows)
    )
    return sizes.max(), next(together)


@dataclasses.dataclass(frozen=True)
class _Forced(HeldExperts):
    """Experts with a given value of `separate_rows`."""

    rows: int = 0

    @property
    def separate_rows(self):
        return self.rows


def _times(network: FeedForward, count: int, expert, context, rounds: int) -> list[np.ndarray]:
    """Seconds of a layer in each round: with separate experts, and with one product."""
    network = dataclasses.replace(network, num_experts=count)
    theta = NestedMap(experts=init_theta(network.weights(), 0))
    layers = 2 + _WEIGHTS // count_weights(network.weights())
    thetas = [theta.map(tf.Variable) for _ in range(layers)]
    inputs = tf.random.stateless_normal([1, expert.shape[1], network.model_dim], [3, 4])

    def run(rows):
        @tf.function(autograph=False)
        def chain(inputs, routing):
            values = [theta.map(lambda variable: variable.value()) for theta in thetas]
            with tf.GradientTape() as tape:
                tape.watch(values)
                outputs = inputs
                for value in values:
                    experts = _Forced(network, value, context, rows)
                    outputs += Ragged().dispatch(outputs, routing, None, experts).outputs
            return tape.gradient(outputs, values) if context.training else outputs

        return lambda: chain(inputs, _routing(expert, count))

    times = seconds_in_turn(
        {rows: run(rows) for rows in (-10_000, 10_000)}, rounds, time.process_time
    )
    return [value / layers for value in times.values()]


def _routing(expert: np.ndarray, count: int):
    """The Routing of these choices, all with weight 0.5."""
    tokens = expert.shape[1]
    gates, mask = tf.fill([1, tokens, count], 1 / count), tf.fill([1, tokens], True)
    return route_choices(gates, tf.constant(expert), tf.fill(expert.shape, 0.5), mask, None)


if __name__ == "__main__":
    main()
