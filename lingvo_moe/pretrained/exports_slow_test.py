"""Exports of an imported model, tried by the commands that lingvo-moe-export prints."""

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.testing import hugging_face as testing
from lingvo_moe.testing.commands import succeed

pytestmark = pytest.mark.slow

LANGUAGES = "--source_language=ace_Arab --to=zul_Latn"  # the first and the last


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nllb_moe") / "imported"
    return import_model(testing.FIXTURES / "nllb_moe", directory).path


@pytest.fixture(scope="module")
def expected(logdir):
    return succeed("translate", f"--logdir={logdir}", *LANGUAGES.split(), "pack my box").stdout


def export(logdir, output, *flags):
    """The command that the tool prints."""
    said = succeed("export", f"--logdir={logdir}", f"--output={output}", *flags).stderr
    return shlex.split(re.search(r"Try: (.*)", said)[1].replace("a sentence", "pack my box"))


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, input="")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_saved_model(logdir, expected, tmp_path, dtype):
    python, *command = export(logdir, tmp_path / "export", f"--dtype={dtype}")
    assert (python, " ".join(command[1:3])) == ("python", LANGUAGES)
    found = run(*command)
    if dtype == "float32":
        assert found == expected


def test_options_of_a_saved_model(logdir, tmp_path):
    """Translations begin with a tag, so a prefix is no option."""
    export(logdir, tmp_path / "export")
    sides = lm.load(tmp_path / "export"), lm.load(logdir)
    options = {"n_best": 3, "beam_size": 5, "no_repeat_ngram": 2}
    ours, theirs = (
        side.translate(["pack my box"], "zul_Latn", source_language="ace_Arab", **options)
        for side in sides
    )
    assert [t.text for t in ours[0]] == [t.text for t in theirs[0]]
    given = {"to": "zul_Latn", "source_language": "ace_Arab"}
    (score,), (expected,) = (side.score(["pack my"], ["box"], **given) for side in sides)
    np.testing.assert_allclose(score.token_log_probs, expected.token_log_probs, atol=1e-4)
    with pytest.raises(ValueError, match="target_prefix is no option of this export"):
        sides[0].translate(["pack my box"], target_prefix="a", **given)


def test_weights(logdir, expected, tmp_path):
    tool, *command = export(logdir, tmp_path / "export", "--format=safetensors")
    assert tool == "lingvo-moe-translate"
    assert succeed("translate", *command).stdout == expected
