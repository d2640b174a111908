"""Exports without a checkpoint, in bfloat16, of experts that drop nothing, of newer routers."""

import os

import numpy as np
import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats.base import read_theta
from lingvo_moe.serving.formats.saved_model import ServedModel
from lingvo_moe.serving.formats.stablehlo import StableHLO
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.exports import (
    LONG,
    SENTENCES,
    SMALL,
    TOLERANCE,
    assert_trains_as_here,
    lines,
    losses_of,
    run_bare,
    train_here,
    trained,
)

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"
pytestmark = pytest.mark.slow

TRANSLATOR = StableHLO(programs=("translate",), batch_size=4, source_length=20)
_GATING = "model.moe.gating="
_ROUTERS = {
    # With this rate the bias is larger than the scores after one step.
    "loss-free": (
        f"{_GATING}TopK(k=2,scores=Sigmoid(),bias=LossFree(rate=0.5),balance=BySequence())",
        "model.moe.shared=AlwaysOn(experts=1)",
    ),
    "node limit": (f"{_GATING}TopK(k=2,limit=NodeLimited(nodes=2,kept=1))",),
    "by task": ("model.moe.router=ByTask(task='source')",),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("model"))


def test_ragged_experts_give_way_to_dropless_ones(model_dir, tmp_path):
    ragged = model_dir.with_overrides(["model.moe.evaluation=Ragged()"])
    translator, _ = load_translator(ragged, Local(ragged.task))
    sentences = [sentence for sentence in SENTENCES if sentence != LONG]
    expected = [best[0].text for best in translator(sentences, "en")]
    TRANSLATOR.export(ragged, tmp_path)
    result = run_bare(tmp_path, stdin="\n".join(sentences) + "\n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == lines(expected)


def test_an_untrained_model_draws_its_state_where_it_runs(tmp_path):
    params = override(get_params("tiny.MoE"), SMALL)
    StableHLO().export_untrained("tiny.MoE", params, tmp_path)
    assert not (tmp_path / "state.npz").exists()
    task = TranslationTask(params)
    runtime = Local(task, train_step(task))
    runtime.initialize(params.train.seed)
    steps, losses = losses_of(tmp_path)
    assert steps == [1, 2, 3]
    np.testing.assert_allclose(losses, train_here(runtime, tmp_path), rtol=TOLERANCE)
    translate = run_bare(tmp_path)
    assert translate.returncode == 1
    assert "error: There is no program 'translate'" in translate.stderr
    assert "--steps must be >= 1, got 0" in run_bare(tmp_path, "--steps=0").stderr
    assert "leave out --to" in run_bare(tmp_path, "--steps=1", "--to=de").stderr


def test_bfloat16_reaches_the_products():
    from lingvo_moe.serving.stablehlo import lower, train_program

    params = override(get_params("tiny.MoE"), [*SMALL, "activation_dtype=bfloat16"])
    exported = lower(train_program(TranslationTask(params)))
    products = [line for line in exported.mlir_module().splitlines() if "dot_general" in line]
    assert sum("bf16" in line for line in products) > len(products) / 2
    assert {str(aval.dtype) for aval in exported.out_avals} == {"float32", "int32"}


@pytest.mark.parametrize("overrides", _ROUTERS.values(), ids=_ROUTERS)
def test_exports_route_as_the_model_does(overrides, tmp_path):
    made = trained(tmp_path / "model", *overrides)
    translator, _ = load_translator(made, Local(made.task))
    sentences = [sentence for sentence in SENTENCES if sentence != LONG]
    source = "qna" if made.task.needs_source_language else None
    wanted = [best[0] for best in translator(sentences, "en", source)]

    ServedModel(made, read_theta(made)[0]).save(tmp_path / "saved")
    found = [
        best[0]
        for best in Exported(tmp_path / "saved").translate(sentences, "en", source_language=source)
    ]
    assert [best.text for best in found] == [best.text for best in wanted]
    scores = [[best.score for best in of] for of in (found, wanted)]
    np.testing.assert_allclose(*scores, atol=1e-4)

    StableHLO(batch_size=4, source_length=20).export(made, tmp_path / "hlo")
    languages = [f"--source_language={source}"] if source else []
    result = run_bare(tmp_path / "hlo", *languages, stdin="\n".join(sentences) + "\n")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == lines(best.text for best in wanted)

    assert_trains_as_here(made, tmp_path / "hlo")
