"""The tools as their users run them: in processes of their own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lingvo_moe.tools as tools_package
from lingvo_moe.reporting.figure import COLORS
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.logdirs import SMALLEST_DENSE
from lingvo_moe.testing.pictures import ink
from lingvo_moe.testing.tiny_world import CORPUS

TINY = [f"--set={text}" for text in SMALLEST_DENSE]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    output = tmp_path_factory.mktemp("tools") / "data"
    sizes = ("--source_vocab_size=400", "--target_vocab_size=300")
    result = succeed("prepare", f"--corpus={CORPUS}", f"--output={output}", *sizes)
    assert "qna-en" in result.stdout
    return output


@pytest.fixture(scope="module")
def logdir(data):
    path = data.parent / "model"
    steps = ("--max_steps=2", "--set=train.eval_every=2")
    result = succeed(
        "train", "--model=tiny.Dense", f"--data={data}", f"--logdir={path}", *TINY, *steps
    )
    assert "step 2/2  loss " in result.stderr
    assert "Done at step 2" in result.stderr
    assert not re.search(r"^[EW]\d{4} ", result.stderr, re.MULTILINE)  # of TensorFlow's own log
    return path


def test_evaluate_writes_a_report(data, logdir):
    output = data.parent / "report"
    result = succeed(
        "evaluate", f"--logdir={logdir}", f"--data={data}", f"--output={output}", "--pairs=qna-en"
    )
    assert "qna-en" in result.stdout
    report = json.loads((output / "report.json").read_text())
    assert (report["model"], report["checkpoint_step"], report["split"]) == (
        "tiny.Dense",
        2,
        "test",
    )
    assert [(p["pair"], p["test_examples"]) for p in report["pairs"]] == [("qna-en", 20)]
    assert ink((output / "delta_bleu.png").read_bytes(), COLORS[0]) > 0
    assert ">qna-en</td>" in (output / "index.html").read_text()


def test_an_error_is_one_line_and_exit_status_1(data, tmp_path):
    message = error_of("train", "--model=tiny.Mo", f"--data={data}", f"--logdir={tmp_path}")
    assert "Unknown model 'tiny.Mo'. Did you mean 'tiny.MoE'" in message


@pytest.mark.slow
def test_no_tool_imports_jax_or_keras_before_it_needs_them():
    """They take 2 seconds and 260 MB; tensorflow_text imports both."""
    tools = sorted(path.stem for path in Path(tools_package.__file__).parent.glob("[a-z]*.py"))
    names = [name for name in tools if not name.endswith("_test")]
    assert {"train", "serve", "prepare"} <= set(names)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(f'lingvo_moe.tools.{name}')\n"
        "print({'jax', 'keras', 'tensorflow_text'} & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", program, *names]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (0, "set()\n"), result.stderr[-3000:]
