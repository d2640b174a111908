import json
import os
import subprocess
import sys
import threading

import pytest

import lingvo_moe as lm
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.commands import error_of, run_tool, succeed
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
        (["--score=TMP/no_lines", "kara"], "no_lines has 0 lines"),
        (["--score=TMP/two_lines", "kara"], "two_lines has more"),
        (["--score=TMP/two_lines", "--output=TMP/two_lines", "kara"], "the same file"),
        (["--score=TMP/x", "--input=TMP/two_lines", "--output=TMP/link"], "the same file"),
    ],
)
def test_what_is_wrong_is_found_before_the_weights_are_read(logdir, tmp_path, flags, message):
    """The logdir here has none."""
    (tmp_path / "no_lines").touch()
    (tmp_path / "two_lines").write_text("a\nb\n")
    (tmp_path / "link").symlink_to("two_lines")
    given = [flag.replace("TMP", str(tmp_path)) for flag in flags]
    assert message in error_of("translate", f"--logdir={logdir}", *given)


def test_a_line_is_answered_before_the_next_is_written(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    lines = ["kara mi", "mi. so."]
    expected = [f"{best[0].text}\n" for best in lm.load(logdir).translate(lines)]
    command = [sys.executable, "-m", "lingvo_moe.tools.translate", f"--logdir={logdir}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        for line, answer in zip(lines, expected, strict=True):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdin.close()


def test_a_file_is_translated(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("kara mi\nmi. so.\n")
    files = f"--logdir={logdir}", f"--input={source}", f"--output={output}"
    succeed("translate", *files)
    assert not (tmp_path / "output.parts").exists()
    expected = lm.load(logdir).translate(["kara mi", "mi. so."])
    assert output.read_text() == "".join(f"{best[0].text}\n" for best in expected)


@pytest.mark.slow
def test_processes_write_what_one_writes(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"mi {'kara ' * (n % 3)}\n" for n in range(4200)))
    arguments = (f"--logdir={logdir}", f"--input={source}", "--scores")
    succeed("translate", *arguments, f"--output={output}", "--processes=2")
    succeed("translate", *arguments, f"--output={tmp_path / 'alone'}")
    assert output.read_bytes() == (tmp_path / "alone").read_bytes()
    assert output.read_bytes().count(b"\n") == 4200


def test_scores_from_pipes(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def score(translations):
        writer = threading.Thread(target=pipe.write_text, args=[translations])
        writer.start()
        flags = f"--logdir={logdir}", f"--score={pipe}"
        result = run_tool("translate", *flags, stdin="kara\nmi\n")
        writer.join()
        return result

    texts = [line.split("\t")[1] for line in score("so\nra\n").stdout.splitlines()]
    assert texts == ["so", "ra"]
    assert "the input has more" in score("so\n").stderr


def test_scores_of_given_translations(tmp_path):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    sources, targets = ["kara mi", "", "mi\x85ra \U0001f600"], ["so\u2028ra\t", "ti", ""]
    for name, lines in (("sources", sources), ("targets", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = (
        f"--{flag}={tmp_path / name}"
        for flag, name in (("input", "sources"), ("score", "targets"), ("output", "scores"))
    )
    succeed("translate", f"--logdir={logdir}", *files, "--set=decoding.tokens=True")
    written = [json.loads(line) for line in (tmp_path / "scores").read_text().split("\n")[:-1]]
    scores = lm.load(logdir).score(sources, targets, "en")
    for row, text, score in zip(written, targets, scores, strict=True):
        assert row == {"text": text, **score.as_json()}
