"""From the command line to StableHLO and back to text, as users go."""

import json

import pytest

from lingvo_moe.serving.stablehlo_test import run_bare
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.tiny_world import CORPUS
from lingvo_moe.tools.tools_test import TINY, data, logdir  # noqa: F401

pytest.importorskip("jax")
pytestmark = pytest.mark.slow


def test_translations_equal_those_of_the_tool(logdir, tmp_path):  # noqa: F811
    sentences = (CORPUS / "test" / "qna-en.qna").read_text() + "\u3000\nka\u2028ra\n"
    shapes = ("--batch_size=8", "--source_length=40")
    result = succeed(
        "export",
        "--format=stablehlo",
        f"--logdir={logdir}",
        f"--output={tmp_path}",
        "--programs=translate",
        *shapes,
    )
    assert f"python {tmp_path}/run.py < sentences" in result.stderr
    assert list(json.loads((tmp_path / "manifest.json").read_text())["programs"]) == ["translate"]
    ours = succeed("translate", f"--logdir={logdir}", "--to=en", stdin=sentences).stdout
    served = run_bare(tmp_path, stdin=sentences)
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
