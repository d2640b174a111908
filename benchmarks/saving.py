"""How long a save stops training: written by the main thread, and in the background.

python benchmarks/saving.py [--gigabytes=1] [--rounds=5]

The state is random float32 of this size, as TensorFlow variables and as JAX arrays on one device.
Every number is a median over rounds; each round measures both ways once. One more round, the first,
is not counted: it allocates the memory of the copies.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from lingvo_moe.reporting.table import Table
from lingvo_moe.training.checkpoint import NO_BEST, Checkpointer, Retention
from lingvo_moe.training.saver import Saver

TENSORS = 16


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    size = int(flags.gigabytes * 2**30 / 4 / TENSORS)
    arrays = [np.random.default_rng(i).random(size, np.float32) for i in range(TENSORS)]
    columns = ("state", "synchronous, s", "blocked, s", "blocked / synchronous", "writing, s")
    rows = []
    for name, make in (("TensorFlow", _variables), ("JAX", _jax_arrays)):
        state = make(arrays)
        with tempfile.TemporaryDirectory() as directory:
            run = _Round(Path(directory), state)
            rounds = np.array([run(i) for i in range(flags.rounds + 1)])[1:]
        whole, blocked, written = np.median(rounds, axis=0)
        share = np.median(rounds[:, 1] / rounds[:, 0])
        times = (f"{whole:.2f}", f"{blocked:.3f}", f"{100 * share:.1f} %", f"{written:.2f}")
        rows.append((name, *times))
    print(Table(columns, rows).to_text())


class _Round:
    """Seconds of a save in this thread; of starting one in the background; and of its writing."""

    def __init__(self, directory, state):
        self._state = state
        checkpoints = (
            Checkpointer(directory / name, Retention(1)) for name in ("here", "background")
        )
        self._savers = [Saver(c, b) for c, b in zip(checkpoints, (False, True), strict=True)]

    def __call__(self, step):
        times = [_seconds(lambda s=s: s.save(step, self._state(), NO_BEST)) for s in self._savers]
        return *times, _seconds(self._savers[1].wait)


def _seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _variables(arrays):
    import tensorflow as tf

    variables = {f"theta/{i}": tf.Variable(array) for i, array in enumerate(arrays)}
    return lambda: {name: variable.value() for name, variable in variables.items()}


def _jax_arrays(arrays):
    import jax

    held = {f"theta/{i}": jax.device_put(array) for i, array in enumerate(arrays)}
    return lambda: held


if __name__ == "__main__":
    main()
