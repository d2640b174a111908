"""Texts for exported models, and runs of exported programs in processes without TensorFlow."""

import os
import subprocess
import sys

import numpy as np

from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_step
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.logdirs import SMALLEST

# With line ends and spaces of Unicode, blank lines, one of many tokens, two without words,
# and one in capitals.
LINES = [
    "kara mi", "ka\u2028ra", "mi\x85ra", "ti\x0cra so", "ka\x0bra", "a\x1cb\x1dc\x1ed", "mi\rra",
    "", "\u3000", "\xa0", "\u200b", " \t", "\ufeff", "kara " * 10, "mira",
    "10.2", "(https://a.b)\x85", "KARA MI SO",
]  # fmt: skip
STEPS = 3  # that `run_bare` and `train_here` take

# Each of two compilers adds up float32 numbers in its own order: some 1e-7 a step.
TOLERANCE = 2e-5
SMALL = (*SMALLEST, "input.source_length=12", "input.target_length=12")
LONG = "kara " * 60  # more than 12 tokens
SENTENCES = [
    "kara mi", "", "tira so\u2028kara", "mi\x85r\x0ca\x1c", "m\ri", "\u3000", "\u200b", LONG, "mi",
    "10.2", "KARA MI SO",
]  # fmt: skip
BARE = """
import importlib.abc, os, runpy, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("lingvo_moe", "tensorflow", "absl"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_bare(directory, *arguments, stdin="", program="run.py"):
    """The result of an exported program, in a process without this package and TensorFlow."""
    return subprocess.run(
        [sys.executable, "-I", "-c", BARE, str(directory / program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=600,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )


def lines(texts):
    """What the runner prints for translations: one line each."""
    return "".join(f"{text}\n" for text in texts)


def losses_of(directory):
    """What the runner prints of each step."""
    result = run_bare(directory, f"--steps={STEPS}")
    assert result.returncode == 0, result.stderr[-3000:]
    words = [line.split() for line in result.stdout.splitlines()]
    assert {(line[0], line[2], line[-1]) for line in words} == {("step", "loss", "tokens/s")}
    return [int(line[1]) for line in words], [float(line[3]) for line in words]


def train_here(runtime, directory):
    """The same steps on the local runtime."""
    with np.load(directory / "batch.npz") as held:
        batch = dict(held)
    metrics = [runtime.train(batch) for _ in range(STEPS)]
    return [float(m.nll) / float(m.tokens) for m in metrics]


def assert_trains_as_here(model_dir, directory):
    """The exported steps of a model that is `trained` give the losses of the same steps here."""
    runtime = Local(model_dir.task, train_step(model_dir.task))
    runtime.restore(model_dir.checkpoints.read().tensors)
    steps, losses = losses_of(directory)
    assert steps == [4, 5, 6]
    expected = train_here(runtime, directory)
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)


def trained(path, *overrides):
    """The logdir of a model that has taken three steps."""
    from lingvo_moe.serving.stablehlo import example_batch

    made = ModelDir.create(path, "tiny.MoE", (*SMALL, *overrides), tiny_world.dataset())
    runtime = Local(made.task, train_step(made.task))
    runtime.initialize(5)
    for _ in range(3):
        runtime.train(example_batch(made.params, len(made.pairs)))
    made.checkpoints.save(3, runtime.state())
    return made
