"""An exported training step runs in a process without TensorFlow and this package."""

import json
import os

import numpy as np
import pytest
from gpu_export import export as write_export

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.training import train_step
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.exports import run_bare
from lingvo_moe.testing.logdirs import SMALLEST

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"
SMALL = (*SMALLEST, "input.source_length=12", "input.target_length=12")
TOLERANCE = 2e-5  # each of two compilers adds up float32 numbers in its own order


def params(*overrides):
    return override(get_params("tiny.MoE"), [*SMALL, *overrides])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    output = tmp_path_factory.mktemp("made") / "export"
    write_export("tiny.MoE", SMALL, output)
    return output


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def assert_trains_as_here(directory, of):
    """Three exported steps, printed by run.py, have the losses of the same steps here."""
    result = run_bare(directory, "--steps=3")
    assert result.returncode == 0, result.stderr[-3000:]
    words = [line.split() for line in result.stdout.splitlines()]
    assert [int(line[1]) for line in words] == [1, 2, 3]
    task = TranslationTask(of)
    runtime = Local(task, train_step(task))
    runtime.initialize(of.train.seed)
    with np.load(directory / "batch.npz") as held:
        batch = dict(held)
    metrics = [runtime.train(batch) for _ in range(3)]
    expected = [float(m.nll) / float(m.tokens) for m in metrics]
    assert expected[-1] < expected[0]
    np.testing.assert_allclose([float(line[3]) for line in words], expected, rtol=TOLERANCE)


@pytest.mark.slow
def test_it_draws_its_state_and_trains_as_here(exported):
    assert_trains_as_here(exported, params())


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        # With this rate the bias is larger than the scores after one step.
        (
            "model.moe.gating=TopK(k=2,scores=Sigmoid(),bias=LossFree(rate=0.5),balance=BySequence())",
            "model.moe.shared=AlwaysOn(experts=1)",
        ),
        ("model.moe.gating=TopK(k=2,limit=NodeLimited(nodes=2,kept=1))",),
        ("model.moe.router=ByTask(task='source')",),
        # Rows of experts here, blocks in the program.
        ("model.moe.training=Ragged()",),
    ],
)
def test_so_do_other_gatings_routers_and_dispatchers(overrides, tmp_path):
    write_export("tiny.MoE", [*SMALL, *overrides], tmp_path / "export")
    assert_trains_as_here(tmp_path / "export", params(*overrides))


@pytest.mark.slow
def test_flops_by_hand(exported):
    """Three passes: 2 matrices of 2·M·H = 2·16·32 operations a slot, 2 layers of E·C slots.

    The batch is 4 x 12 tokens on each side, one group; C = ceil(2 · 48 / 8) = 12.
    """
    flops = manifest(exported)["flops"]
    assert flops["experts"] == 3 * 2 * (2 * 2 * 16 * 32) * (8 * 12)
    assert flops["softmax"] == 3 * 2 * 48 * 16 * 512
