import importlib.util
import types

import pytest

from lingvo_moe.serving.prune import AllPairs, ByLanguage, PerLayer, Pruning, Threshold
from lingvo_moe.tools import export


@pytest.fixture
def flags(monkeypatch, tmp_path):
    """The tool's flags, with values of the test's choice."""

    def choose(**values):
        chosen = {"logdir": None, "model": None, "programs": None, "set": [], "step": None}
        chosen |= {"output": str(tmp_path), "format": "stablehlo", **values}
        chosen = {"dtype": "float32", "prune": None, "report_data": None, "languages": []} | chosen
        monkeypatch.setattr(export, "FLAGS", types.SimpleNamespace(**chosen))

    return choose


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "saved_model"}, "--format=saved_model needs --logdir"),
        ({}, "Give --logdir, or --model for a training step without a checkpoint"),
        (
            {"model": "tiny.MoE", "programs": ["translate"]},
            "--programs=translate needs --logdir",
        ),
        (
            {"format": "saved_model", "languages": ["de"], "logdir": "DIR"},
            "--languages selects the languages of pruned exports: give --prune=0.75",
        ),
        ({"prune": 0.5}, "--dtype, --prune and --report_data are not for --format=stablehlo"),
        ({"model": "tiny.Mo"}, "Unknown model 'tiny.Mo'. Did you mean 'tiny.MoE'"),
        ({"logdir": "/nowhere"}, "/nowhere is no logdir"),
    ],
)
def test_what_is_missing(flags, values, message, monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    flags(**values)
    with pytest.raises(ValueError, match=message):
        export.main([])


def test_without_jax_the_message_names_the_cure(flags, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    flags(model="tiny.MoE")
    with pytest.raises(ValueError, match=r"pip install 'lingvo_moe\[spmd\]'"):
        export.main([])


def test_flags_of_pruning_are_policies(flags):
    chosen = {"prune": 0.8, "prune_by": "layer", "prune_statistics": "language", "prune_ratio": 3.0}
    flags(**chosen, languages=["de", "fr-en"])
    assert export._pruning() == Pruning(
        share=0.8,
        languages=("de", "fr-en"),
        statistics=ByLanguage(),
        choice=PerLayer(ratio=3.0),
    )
    flags(**chosen | {"prune_by": "global", "prune_statistics": "all", "prune_ratio": None})
    assert export._pruning() == Pruning(share=0.8, statistics=AllPairs(), choice=Threshold())
