"""Preparation with Beam's local runner, in an environment of its own without TensorFlow."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lingvo_moe.testing.files import contents

ROOT = Path(__file__).parents[2]
# What preparation imports; `pip install '.[beam]'` would also install TensorFlow.
_PACKAGES = ["apache-beam>=2.77,<3", "numpy", "protobuf", "sacrebleu", "sentencepiece"]
_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
_LINES = 300

pytestmark = pytest.mark.slow

# Small blocks, and so little memory that each pair has several ranges of hashes. The rule notes
# the processes that apply it. Beam's workers import the file, because the params need its rule.
_PLUGIN = """
import dataclasses, os
from pathlib import Path
from lingvo_moe.data import prepare_pair
from lingvo_moe.data.cleaning.base import CleaningRule

prepare_pair._BLOCK_LINES = 50
prepare_pair._BYTES_PER_KEY = 1 << 12

@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(CleaningRule):
    name = "odd"

    def drops(self, texts, languages):
        (Path(__file__).parent / f"process-{os.getpid()}").touch()
        return texts[0].endswith("1")
"""
_RUN = """
import sys
from pathlib import Path
from lingvo_moe.config.params import override
from lingvo_moe.config.plugins import import_plugins
from lingvo_moe.data.prepare import PrepareParams, prepare

if __name__ == "__main__":
    plugin, corpus, output, *beam = sys.argv[1:]
    import_plugins([plugin])
    params = PrepareParams(
        source_vocab_size=340, target_vocab_size=330, both_directions=True)
    given = {"beam": beam} if beam else {"processes": 1}
    prepare(Path(corpus), Path(output), override(params, ["cleaning=(Odd(),)"]),
            memory_mb=1, **given)
    assert not {"tensorflow", "jax"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment with apache-beam."""
    directory = tmp_path_factory.mktemp("beam") / "venv"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *_PACKAGES]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"apache-beam cannot be installed: {installed.stderr.strip()[-200:]}")
    return python


@pytest.fixture
def start(python, tmp_path):
    """A function that starts preparation, with Beam if it gets options of a pipeline."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin/odd_rule.py").write_text(_PLUGIN)

    def start(output, *beam):
        arguments = ["plugin/odd_rule.py", "corpus", output, *beam]
        return subprocess.Popen(
            [python, "-c", _RUN, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def _finish(process):
    """The exit status and the errors."""
    errors = process.communicate(timeout=500)[1]
    return process.returncode, errors


def _write_corpus(directory):
    rng = random.Random(1)
    for name in ("de-en", "fi-en"):
        for split, count in {"train": _LINES, "dev": 3, "test": 5}.items():
            (directory / split).mkdir(parents=True, exist_ok=True)
            lines = [f"Satz {rng.randrange(400)}\tline {rng.randrange(3)}" for _ in range(count)]
            (directory / split / f"{name}.tsv").write_text("".join(f"{x}\n" for x in lines))


def test_beam_gives_the_same_bytes_also_when_killed(start, tmp_path):
    _write_corpus(tmp_path / "corpus")
    assert _finish(start("whole"))[0] == 0
    for path in (tmp_path / "plugin").glob("process-*"):
        path.unlink()
    killed = start("data", *_WORKERS)
    checks = tmp_path / "data.parts" / "checks"
    while killed.poll() is None and not list(checks.glob("train/*/0*")):
        time.sleep(0.01)
    killed.kill()
    _finish(killed)
    assert not (tmp_path / "data").exists()
    status, errors = _finish(start("data", *_WORKERS))
    assert status == 0, errors
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")
    assert len(list((tmp_path / "plugin").glob("process-*"))) >= 2  # workers, not this process
    assert sorted(os.listdir(tmp_path)) == ["corpus", "data", "plugin", "whole"]


def test_an_error_of_a_worker_names_the_line(start, tmp_path):
    _write_corpus(tmp_path / "corpus")
    with (tmp_path / "corpus/train/fi-en.tsv").open("ab") as file:
        file.write(b"\xff\tline\n")
    status, errors = _finish(start("data", "--runner=DirectRunner"))
    assert status == 1
    assert f"corpus/train/fi-en.tsv, line {_LINES + 1}" in errors.strip().splitlines()[-1]
    assert not (tmp_path / "data").exists()
