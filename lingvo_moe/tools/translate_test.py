import os
import subprocess
import sys

import pytest

import lingvo_moe as lm
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.commands import error_of, succeed
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    ModelDir.create(path, "tiny.MoE", tiny_world.SHRINK, tiny_world.dataset())
    return path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to=EN", "kara"], "Did you mean 'en'"),
        (["--beam_size=65", "kara"], "1 to 64, got 65"),
        (["--output=TMP/o.txt.gz", "kara"], "not compressed"),
        (["--input=TMP"], "a directory"),
        (["--input=TMP/two_lines", "--output=TMP/link"], "the same file"),
    ],
)
def test_what_is_wrong_is_found_before_the_weights_are_read(logdir, tmp_path, flags, message):
    """The logdir here has none."""
    (tmp_path / "two_lines").write_text("a\nb\n")
    (tmp_path / "link").symlink_to("two_lines")
    given = [flag.replace("TMP", str(tmp_path)) for flag in flags]
    assert message in error_of("translate", f"--logdir={logdir}", *given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("trained") / "model", SMALLEST).path


LINES = ["kara mi", "mi. so."]


@pytest.fixture(scope="module")
def expected(trained):
    return [f"{best[0].text}\n" for best in lm.load(trained).translate(LINES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "lines.txt"])
def test_a_line_is_answered_before_the_next_is_written(trained, expected, tmp_path, name):
    command = [sys.executable, "-m", "lingvo_moe.tools.translate", f"--logdir={trained}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    if name:
        os.mkfifo(tmp_path / name)
        command.append(f"--input={tmp_path / name}")
    with (
        subprocess.Popen(command, **pipes) as process,
        (tmp_path / name).open("w") if name else process.stdin as lines,
    ):
        for line, answer in zip(LINES, expected, strict=True):
            lines.write(f"{line}\n")
            lines.flush()
            assert process.stdout.readline() == answer


def test_a_file_is_translated(trained, expected, tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"{line}\n" for line in LINES))
    files = f"--logdir={trained}", f"--input={source}", f"--output={output}"
    succeed("translate", *files)
    assert not (tmp_path / "output.parts").exists()
    assert output.read_text() == "".join(expected)


@pytest.mark.slow
def test_processes_write_what_one_writes(trained, tmp_path):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"mi {'kara ' * (n % 3)}\n" for n in range(4200)))
    arguments = (f"--logdir={trained}", f"--input={source}", "--scores")
    succeed("translate", *arguments, f"--output={output}", "--processes=2")
    succeed("translate", *arguments, f"--output={tmp_path / 'alone'}")
    assert output.read_bytes() == (tmp_path / "alone").read_bytes()
    assert output.read_bytes().count(b"\n") == 4200
