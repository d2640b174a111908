"""Exports of models with newer routers: a SavedModel, and programs without TensorFlow."""

import os

import numpy as np
import pytest

from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.format import read_theta
from lingvo_moe.serving.saved_model import ServedModel
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.training import train_step
from lingvo_moe.testing.exports import (
    LONG,
    SENTENCES,
    TOLERANCE,
    lines,
    losses_of,
    run_bare,
    train_here,
    trained,
)

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"
pytestmark = pytest.mark.slow

_GATING = "model.moe.gating="
_ROUTERS = {
    # With this rate the bias is larger than the scores after one step.
    "loss-free": (
        f"{_GATING}TopK(k=2,scores=Sigmoid(),bias=LossFree(rate=0.5),balance=BySequence())",
        "model.moe.always_on_experts=1",
    ),
    "node limit": (f"{_GATING}TopK(k=2,limit=NodeLimited(nodes=2,kept=1),balance=ByBatch())",),
    "gating dropout": (
        f"{_GATING}TopK(k=2)",
        "model.moe.gating_dropout=GatingDropout(rate=0.5,nodes=2)",
        "model.moe.num_groups=2",
    ),
}


@pytest.mark.parametrize("overrides", _ROUTERS.values(), ids=_ROUTERS)
def test_exports_route_as_the_model_does(overrides, tmp_path):
    from lingvo_moe.serving.stablehlo import export_trained

    made = trained(tmp_path / "model", *overrides)
    translator, _ = load_translator(made, Local(made.task))
    sentences = [sentence for sentence in SENTENCES if sentence != LONG]
    wanted = [best[0] for best in translator(sentences, "en")]

    ServedModel(made, read_theta(made)[0]).save(tmp_path / "saved")
    found = [best[0] for best in Exported(tmp_path / "saved").translate(sentences, "en")]
    assert [best.text for best in found] == [best.text for best in wanted]
    scores = [[best.score for best in of] for of in (found, wanted)]
    np.testing.assert_allclose(*scores, atol=1e-4)

    export_trained(made, tmp_path / "hlo", rows=4, length=20)
    result = run_bare(tmp_path / "hlo", stdin="\n".join(sentences) + "\n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == lines(best.text for best in wanted)

    runtime = Local(made.task, train_step(made.task))
    runtime.restore(made.read_checkpoint().tensors)
    steps, losses = losses_of(tmp_path / "hlo")
    assert steps == [4, 5, 6]
    np.testing.assert_allclose(losses, train_here(runtime, tmp_path / "hlo"), rtol=TOLERANCE)
