"""Flags of lingvo-moe-export; exports themselves are tested in `serving`."""

import dataclasses
from pathlib import Path

import pytest

from lingvo_moe.config.params import override
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing.commands import error_of
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model"
    random_logdir(path, SMALLEST)
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "Give --logdir"),
        (["--logdir=/nowhere"], "/nowhere is no logdir"),
        (
            ["--logdir=x", "--format=SavedModel(storage=Int8())", "--dtype=bfloat16"],
            "--dtype=bfloat16 and --format=SavedModel(storage=Int8()) both give the storage",
        ),
        (["--logdir=x", "--format=ctranslate2", "--report_data=y"], "cannot be read back"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_names_the_flag_and_the_cure(given, message, tmp_path):
    assert message in error_of("export", f"--output={tmp_path / 'x'}", *given)
    assert not list(tmp_path.iterdir())


def test_the_printed_command_names_the_languages(logdir, tmp_path):
    model_dir = ModelDir.open(logdir)
    by_task = dataclasses.replace(
        model_dir, params=override(model_dir.params, ["model.moe.router=ByTask(task='source')"])
    )
    flags = "--to=en 'a sentence'"
    assert (
        SavedModel()
        .hint(Path("my export"), model_dir)
        .endswith(f"'my export/translate.py' {flags}")
    )
    source = model_dir.pairs[0].partition("-")[0]
    assert f" --source_language={source} {flags}" in SavedModel().hint(tmp_path, by_task)
