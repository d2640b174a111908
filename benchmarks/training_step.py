"""Training and decoding speed of tiny.MoE, side by side: ratios from runs that alternate.

python benchmarks/training_step.py [--rounds=15] [--optimizers=small.MoE]

Absolute times depend on the machine; compare the ratios of one run. Every figure is a median over
rounds; each round times every variant once. --optimizers has processor time.
"""

import argparse
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.config import registry
from lingvo_moe.config.params import override
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.reporting.table import Table
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.recipe import registered
from lingvo_moe.tasks.translation import TranslationTask

VARIANTS = {
    "gather (the default)": (),
    "einsum": ("model.moe.training=Einsum()",),
    "ragged, no capacity": ("model.moe.training=Ragged()",),
    "64 experts, gather": ("model.moe.num_experts=64",),
    "dense twin": ("model.moe=None",),
}
_SCHEDULE = "schedule=Cosine(learning_rate=0.01,total_steps=1000000)"
OPTIMIZERS = {
    "Adafactor": (f"optimizer=Adafactor({_SCHEDULE})",),
    "Adafactor, EMA": (f"optimizer=Adafactor({_SCHEDULE},ema_decay=0.99)",),
    "Muon, 3 iterations": (f"optimizer=Muon({_SCHEDULE},iterations=3)",),
    "Muon, 5 iterations": (f"optimizer=Muon({_SCHEDULE})",),
    "AdamW": (f"optimizer=AdamW({_SCHEDULE})",),
}


Name = TypeVar("Name", bound=Hashable)


def seconds_in_turn(
    runs: Mapping[Name, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, np.ndarray]:
    """The time of each function in each round, where a round calls all of them.

    The machine's speed changes slowly, so the median of the rounds' ratios is more precise than the
    ratio of medians.
    """
    times: dict[Name, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds + 2):
        for name, run in runs.items():
            start = clock()
            run()
            if round_number >= 2:  # the first rounds compile and warm up
                times[name].append(clock() - start)
    return {name: np.array(seconds) for name, seconds in times.items()}


def start(model: str, overrides: Iterable[str]) -> tuple[Local, NestedMap]:
    """A runtime with initial weights, and a batch of random tokens without padding."""
    params = registered(model, overrides)
    task = TranslationTask(params)
    runtime = Local(task, train_step(task))
    runtime.initialize(0)
    return runtime, _full_batch(params)


def _full_batch(params) -> NestedMap:
    rng = np.random.default_rng(0)
    rows, p = params.input.batch_size, params.input

    def ids(length, vocab_size):
        return rng.integers(4, vocab_size, (rows, length)).astype(np.int32)

    source_ones = np.ones((rows, p.source_length), np.int32)
    ones = np.ones((rows, p.target_length), np.int32)
    return NestedMap(
        source_ids=ids(p.source_length, params.source_vocab_size),
        source_segment_ids=source_ones,
        target_inputs=ids(p.target_length, params.target_vocab_size),
        target_ids=ids(p.target_length, params.target_vocab_size),
        target_segment_ids=ones,
        source_pair_ids=0 * source_ones,
        target_pair_ids=0 * ones,
    )


def main() -> None:
    """Prints one table for training and one for decoding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--optimizers", metavar="MODEL", help="compare optimizers of this model")
    args = parser.parse_args()
    if args.optimizers:
        _training(args.optimizers, OPTIMIZERS, args.rounds, time.process_time)
    else:
        _decoding(_training("tiny.MoE", VARIANTS, args.rounds), args.rounds)


def _training(model, variants, rounds, clock=time.perf_counter) -> Local:
    """Prints the table of training steps; the runtime of the first variant."""
    runtimes = {name: start(model, overrides) for name, overrides in variants.items()}
    steps = {n: lambda r=r, b=b: r.train(b).tokens.numpy() for n, (r, b) in runtimes.items()}
    seconds = seconds_in_turn(steps, rounds, clock)
    base, (runtime, batch) = next(iter(seconds.values())), next(iter(runtimes.values()))
    rows = []
    for name, value in seconds.items():
        rate = batch.target_ids.size / np.median(value)
        over = np.median(value / base)
        rows.append((name, f"{1e3 * np.median(value):.0f}", f"{rate:,.0f}", f"{over:.2f}"))
    columns = (f"training step of {model}", "ms", "target tokens/s", "time / first")
    print(Table(columns, rows).to_markdown())
    return runtime


def _decoding(runtime: Local, rounds: int) -> None:
    """Prints the table of decoding."""
    rng = np.random.default_rng(0)
    source = rng.integers(4, 1000, (64, 16)).astype(np.int32)
    lengths = np.full(64, 12, np.int32)
    beams = {
        f"beam {beam}": _decoder(runtime, f"decoding.beam_size={beam}", source, lengths)
        for beam in (1, 4, 8)
    }
    seconds = seconds_in_turn(beams, max(3, rounds // 5))
    title = "decoding, 64 sentences, random weights, to the longest length"
    medians = {name: np.median(value) for name, value in seconds.items()}
    cells = [(name, f"{value:.2f}", f"{64 / value:,.0f}") for name, value in medians.items()]
    print(f"\n{Table((title, 's', 'sentences/s'), cells).to_markdown()}")


def _decoder(trained: Local, text: str, source, lengths) -> Callable[[], object]:
    runtime = Local(TranslationTask(override(registry.get_params("tiny.MoE"), [text])))
    runtime.restore({name: value.numpy() for name, value in trained.state().items()})
    return lambda: runtime.translate(source, lengths).scores.numpy()


if __name__ == "__main__":
    main()
