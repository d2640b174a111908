"""Policies from files outside the package, through the tools as users run them."""

from pathlib import Path

import numpy as np
import pytest

from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.forks import Fork
from lingvo_moe.testing.logdirs import SMALLEST

EXAMPLES = Path(__file__).parents[2] / "examples"
MINE = '''
import dataclasses
import tensorflow as tf
from lingvo_moe.nn.layer import Normal, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.moe.dispatch import AnyShape, Dispatched
from lingvo_moe.moe.router import Router
from lingvo_moe.training.optimizer import Optimizer
from lingvo_moe.training.schedules import Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosines(Router):
    """Scores a token by its direction alone."""

    scale: float = 1.0

    def weights(self, model_dim, num_experts):
        return NestedMap(directions=WeightSpec((model_dim, num_experts), Normal(1.0), "Me"))

    def logits(self, theta, inputs, tokens, context):
        inputs = tf.math.l2_normalize(tf.cast(inputs, tf.float32), axis=-1)
        return self.scale * inputs @ tf.math.l2_normalize(theta.directions, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everywhere(AnyShape):
    """All experts compute all tokens: slow, but easy to understand."""

    def dispatch(self, inputs, routing, capacity, experts):
        rows = tf.reshape(inputs, [1, -1, inputs.shape[-1]])
        outputs = experts.together(tf.repeat(rows, experts.num_experts, axis=0))  # [E, G·S, M]
        weight = tf.where(routing.dispatched, routing.weight, 0.0)[..., None]
        weights = tf.reduce_sum(tf.one_hot(routing.expert, experts.num_experts) * weight, axis=2)
        weights = tf.reshape(weights, [-1, experts.num_experts])
        mixed = tf.einsum("NE,ENM->NM", weights, outputs)
        return Dispatched(tf.reshape(mixed, tf.shape(inputs)), NestedMap())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signs(Optimizer):
    """Each weight moves by the learning rate, whatever the size of its gradient."""

    def weight_slots(self, spec):
        return NestedMap()

    def update_weight(self, weight, slots, grad, spec, rate, count):
        return rate * tf.sign(grad), slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """Half the rate after each step."""

    def __call__(self, step):
        return self.learning_rate * 2.0 ** -(tf.cast(step, tf.float32) - 1.0)
'''
POLICIES = (
    "model.moe.router=Cosines(scale=4.0)",
    "model.moe.training=Everywhere()",
    "model.moe.evaluation=mine.Everywhere()",
    "optimizer=Signs(schedule=Halving(learning_rate=0.01))",
)
LINES = ["kara mi", "tira so kara", "mira"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugins") / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture(scope="module")
def logdir(mine):
    """A model of examples/own_gating.py, with policies of another file, after two steps."""
    path = mine.parent / "logdir"
    succeed(
        "train",
        f"--import={EXAMPLES / 'own_gating.py'}",
        f"--import={mine}",
        "--model=own_gating.Tiny",
        f"--data={tiny_world.dataset().directory}",
        f"--logdir={path}",
        *(f"--set={text}" for text in (*SMALLEST, *POLICIES, "train.eval_every=1")),
        "--max_steps=2",
    )
    return path


@pytest.fixture(scope="module")
def translated(logdir):
    """What the tool prints, with scores."""
    return succeed("translate", f"--logdir={logdir}", "--to=en", "--scores", *LINES).stdout


def arrays(logdir, step):
    """The weights of a checkpoint, as examples/own_format.py writes them."""
    output = logdir.parent / f"arrays_{step}"
    succeed(
        "export",
        f"--import={EXAMPLES / 'own_format.py'}",
        "--format=NumPy(compress=True)",
        f"--logdir={logdir}",
        f"--output={output}",
        f"--step={step}",
    )
    with np.load(output / "weights.npz") as held:
        assert held["step"] == step
        return {name: held[name] for name in held.files if name != "step"}


@pytest.mark.slow
def test_training_used_the_optimizer_the_schedule_and_the_router(logdir):
    """The second step has the rate 0.005, and every weight moves by it or has no gradient."""
    first, second = arrays(logdir, 1), arrays(logdir, 2)
    gate = "decoder/layer_00/feed_forward/gate/directions"
    assert any(name.endswith("/directions") for name in first), gate
    moved = np.concatenate([np.abs(second[name] - first[name]).ravel() for name in first])
    still = np.isclose(moved, 0.0, atol=1e-6)
    np.testing.assert_allclose(moved[~still], 0.005, atol=1e-6)
    assert still.mean() < 0.9


@pytest.mark.slow
def test_translations_are_those_of_another_dispatcher(logdir, translated):
    other = "--set=model.moe.evaluation=Ragged()"
    lines = succeed("translate", f"--logdir={logdir}", "--to=en", "--scores", other, *LINES).stdout
    found, expected = (
        [line.split("\t") for line in text.splitlines()] for text in (translated, lines)
    )
    assert [text for _, text in found] == [text for _, text in expected]
    assert any(text for _, text in found)
    scores = [[float(score) for score, _ in rows] for rows in (found, expected)]
    np.testing.assert_allclose(*scores, atol=2e-4)


@pytest.mark.slow
def test_a_saved_model_and_python_translate_as_the_tool_does(logdir, translated, tmp_path):
    """In a new process, which imports the files because the logdir names them."""
    succeed("export", f"--logdir={logdir}", f"--output={tmp_path / 'export'}")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, lingvo_moe as lm\n"
        "for directory in sys.argv[1:3]:\n"
        "    for (best,) in lm.load(directory).translate(sys.argv[3:], to='en'):\n"
        "        print(f'{best.score:.4f}\\t{best.text}')\n"
    )
    done = Fork(str(script), str(logdir), str(tmp_path / "export"), *LINES).wait()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == translated.splitlines()
    texts = [line.split("\t")[1] for line in lines]
    assert texts[3:] == texts[:3]


def test_without_the_file_a_policy_is_unknown(mine, tmp_path):
    message = error_of("models", "--show=tiny.MoE", "--set=model.moe.router=Cosines()")
    assert "'Cosines()' is not of type ByTask or ByTaskAndToken or ByToken." in message
    shown = succeed("models", f"--import={mine}", "--show=tiny.MoE", f"--set={POLICIES[0]}").stdout
    assert "model.moe.router : mine.Cosines\n" in shown
    assert "model.moe.router.scale : 4.0\n" in shown
