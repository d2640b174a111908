"""Flags of lingvo-moe-export; exports themselves are tested in `serving`."""

import types
from pathlib import Path

import pytest

from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.serving.prune import AllPairs, ByLanguage, PerLayer, Pruning, Threshold
from lingvo_moe.testing.commands import error_of
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.tools import export


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model"
    random_logdir(path, SMALLEST)
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "Give --logdir, or --model for a training step without a checkpoint"),
        (["--model=tiny.MoE"], "SavedModel exports hold trained weights, and tiny.MoE has none"),
        (["--logdir=/nowhere"], "/nowhere is no logdir"),
        (
            ["--format=SavedModel(storage=Int8())", "--dtype=bfloat16"],
            "--dtype=bfloat16 and --format=SavedModel(storage=Int8()) both give the storage",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_names_the_flag_and_the_cure(given, message, tmp_path):
    assert message in error_of("export", f"--output={tmp_path / 'x'}", *given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pair", "by_source", "flags"),
    [
        (("de", "en"), False, ""),
        (("de", "fr"), False, " --to=fr"),
        (("de", "en"), True, " --source_language=de --to=en"),
    ],
)
def test_the_printed_command_names_languages_that_the_client_does_not_assume(
    pair, by_source, flags
):
    """The client's default is English."""
    model_dir = types.SimpleNamespace(
        some_languages=pair,
        tags={pair[1]: 4},
        task=types.SimpleNamespace(needs_source_language=by_source),
    )
    expected = f"python export/translate.py{flags} 'a sentence'"
    assert SavedModel().hint(Path("export"), model_dir) == expected
    assert "python 'my export/translate.py'" in SavedModel().hint(Path("my export"), model_dir)


class Flag(dict):
    """Flags of the test's choice, as attributes."""

    __getattr__ = dict.__getitem__


def test_flags_of_pruning_are_policies(monkeypatch):
    chosen = Flag(prune=0.8, prune_by=None, prune_statistics="language", prune_ratio=3.0)
    monkeypatch.setattr(export, "FLAGS", Flag(chosen, languages=["de", "fr-en"]))
    assert export._pruning() == Pruning(
        share=0.8,
        languages=("de", "fr-en"),
        statistics=ByLanguage(),
        choice=PerLayer(ratio=3.0),
    )
    changed = {"prune_by": "global", "prune_statistics": "all", "prune_ratio": None}
    monkeypatch.setattr(export, "FLAGS", Flag(chosen | changed, languages=[]))
    assert export._pruning() == Pruning(share=0.8, statistics=AllPairs(), choice=Threshold())
