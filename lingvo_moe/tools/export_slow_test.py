"""From the command line to StableHLO and back to text, as users go."""

import json

import pytest

from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.exports import run_bare
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.testing.tiny_world import CORPUS, SHRINK

pytest.importorskip("jax")
pytestmark = pytest.mark.slow
TINY = [f"--set={text}" for text in SHRINK]


def test_translations_equal_those_of_the_tool(tmp_path):
    logdir, exported = tmp_path / "model", tmp_path / "export"
    random_logdir(logdir, SMALLEST)
    sentences = (CORPUS / "test" / "qna-en.qna").read_text() + "\u3000\nka\u2028ra\n"
    options = "programs=('translate',),batch_size=8,source_length=40"
    result = succeed(
        "export",
        f"--format=StableHLO({options})",
        f"--logdir={logdir}",
        f"--output={exported}",
    )
    assert f"python {exported}/run.py < sentences" in result.stderr
    assert list(json.loads((exported / "manifest.json").read_text())["programs"]) == ["translate"]
    ours = succeed("translate", f"--logdir={logdir}", "--to=en", stdin=sentences).stdout
    served = run_bare(exported, stdin=sentences)
    assert served.returncode == 0, served.stderr[-3000:]
    assert served.stdout == ours
    assert len(ours.splitlines()) == 22


def test_a_step_without_a_model_directory(tmp_path):
    succeed(
        "export",
        "--format=stablehlo",
        "--model=tiny.MoE",
        f"--output={tmp_path}",
        *TINY,
        "--set=activation_dtype=bfloat16",
    )
    result = run_bare(tmp_path, "--steps=2")
    assert result.returncode == 0, result.stderr[-3000:]
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["1", "2"]
    message = error_of(
        "export", "--format=stablehlo", "--model=tiny.MoE", f"--output={tmp_path}",
        "--overwrite", *TINY, "--set=model.moe.num_groups=7",
    )  # fmt: skip
    assert "tokens do not divide into num_groups=7 groups" in message
