"""Exports run in processes without TensorFlow and this package, with JAX and NumPy."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_step
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.logdirs import SMALLEST

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"

STEPS = 3
# Each of two compilers adds up float32 numbers in its own order: some 1e-7 a step.
TOLERANCE = 2e-5
SMALL = (*SMALLEST, "input.source_length=12", "input.target_length=12")
LONG = "kara " * 60  # more than 4 · 12 tokens
SENTENCES = [
    "kara mi", "", "tira so\u2028kara", "mi\x85r\x0ca\x1c", "m\ri", "\u3000", "\u200b", LONG, "mi",
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


def run_bare(directory, *arguments, stdin=""):
    """The exported runner's result, in a process that has JAX and NumPy alone."""
    return subprocess.run(
        [sys.executable, "-I", "-c", BARE, str(directory / "run.py"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=600,
        env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )


def lines(texts):
    """As the runner prints them."""
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


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model that has taken three steps."""
    path = tmp_path_factory.mktemp("model")
    made = ModelDir.create(path, "tiny.MoE", SMALL, tiny_world.dataset())
    runtime = Local(made.task, train_step(made.task))
    runtime.initialize(5)
    from lingvo_moe.serving.stablehlo import example_batch

    for _ in range(3):
        runtime.train(example_batch(made.params, len(made.pairs)))
    made.checkpoints.save(3, runtime.state())
    return made


@pytest.fixture(scope="module")
def exported(model_dir):
    from lingvo_moe.serving.stablehlo import export_trained

    output = model_dir.path / "export"
    assert export_trained(model_dir, output, rows=3) == 3
    return output


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def test_translations_are_those_of_the_model(model_dir, exported):
    """In batches of three; three are blank, one is too long."""
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    warnings = []
    expected = [best[0].text for best in translator(SENTENCES, "en", warn=warnings.append)]
    assert len(set(expected)) > 2  # or it would prove little
    result = run_bare(exported, "--to=en", stdin="\r\n".join(SENTENCES) + "\n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == lines(expected)
    assert warnings[0] in result.stderr
    assert "cut, 1 in all: line 8 (" in warnings[0]


def check_training(model_dir, directory):
    """The exported steps give the losses that the same steps give here."""
    runtime = Local(model_dir.task, train_step(model_dir.task))
    runtime.restore(model_dir.read_checkpoint().tensors)
    steps, losses = losses_of(directory)
    assert steps == [4, 5, 6]
    expected = train_here(runtime, directory)
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)


def test_a_trained_model_goes_on_training_as_it_would_here(model_dir, exported):
    check_training(model_dir, exported)


@pytest.mark.slow
def test_so_does_one_that_drops_nothing(model_dir, tmp_path):
    """Rows of experts here, blocks in the program."""
    from lingvo_moe.serving.stablehlo import export_trained

    dropless = ["model.moe.dispatcher=Ragged()", "model.moe.capacity_factor=None"]
    model_dir = model_dir.with_overrides(dropless)
    export_trained(model_dir, tmp_path, ["train"])
    check_training(model_dir, tmp_path)


def test_the_files_say_what_they_are(model_dir, exported):
    from jax import export

    said = manifest(exported)
    assert said["state"] == {"file": "state.npz", "step": 3}
    assert said["tags"] == model_dir.tags
    assert said["vocabularies"]["source"] == {
        "file": "source.model",
        "sha256": model_dir.vocabulary("source").sha256,
    }
    for side in ("source", "target"):
        vocabulary = (exported / f"{side}.model").read_bytes()
        assert vocabulary == model_dir.vocabulary(side).model_bytes
    ids = said["programs"]["translate"]["arguments"][1]["source_ids"]
    assert ids == {"shape": [3, 4 * 12], "dtype": "int32"}
    assert said["programs"]["translate"]["results"]["ids"]["shape"] == [3, 1, 24 + 10]
    with np.load(exported / "state.npz") as state:
        described = said["programs"]["train"]["arguments"][0]
        assert {n: [list(a.shape), a.dtype.name] for n, a in state.items()} == {
            n: [a["shape"], a["dtype"]] for n, a in described.items()
        }
    for name in ("train", "translate"):
        program = export.deserialize(bytearray((exported / f"{name}.stablehlo").read_bytes()))
        assert program.platforms == ("cpu", "cuda")
        text = (exported / f"{name}.mlir").read_text()
        assert "stablehlo.dot" in text
        # A custom call is a function of one platform's library; there must be none.
        assert "custom_call" not in text


def test_flops_by_hand(exported):
    """Three passes: 2 matrices of 2·M·H = 2·16·32 operations a slot, 2 layers of E·C slots.

    The batch is 4 x 12 tokens on each side, one group; C = ceil(2 · 48 / 8) = 12.
    """
    flops = manifest(exported)["flops"]
    assert flops["experts"] == 3 * 2 * (2 * 2 * 16 * 32) * (8 * 12)
    assert flops["softmax"] == 3 * 2 * 48 * 16 * 512


def test_a_vocabulary_s_unknown_language(exported):
    result = run_bare(exported, "--to=xx")
    assert result.returncode == 1
    assert result.stderr.endswith("; got 'xx'.\n")
    assert "error: --to must be one of en" in result.stderr


def test_errors(model_dir, tmp_path):
    from lingvo_moe.serving.stablehlo import export_trained, export_untrained

    wide = override(model_dir.params, ["model.model_dim=32"])
    with pytest.raises(ValueError, match=r"is \(512, 16\) in the checkpoint and \(512, 32\) in"):
        export_trained(dataclasses.replace(model_dir, params=wide), tmp_path)
    empty = dataclasses.replace(model_dir, path=tmp_path)
    with pytest.raises(ValueError, match="has no checkpoint yet; train the model first"):
        export_trained(empty, tmp_path, ["translate"])
    uneven = override(get_params("tiny.MoE"), [*SMALL, "model.moe.num_groups=7"])
    with pytest.raises(ValueError, match=r"48 tokens do not divide into num_groups=7 groups"):
        export_untrained("", uneven, tmp_path)
