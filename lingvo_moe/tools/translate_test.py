import io
import json
import os
import sys
import threading
import types

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.conversation import converse
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
from lingvo_moe.tools import translate

FILES = ("input", "output", "score")


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    ModelDir.create(path, "tiny.MoE", tiny_world.SHRINK, tiny_world.dataset())
    return path


@pytest.fixture
def call(logdir, tmp_path, monkeypatch):
    """The tool with flags and arguments; "TMP" in a flag is a directory."""

    def run(arguments=("kara",), **values):
        chosen = dict.fromkeys(
            ("model", "source_language", "input", "output", "beam_size", "score", "step")
        )
        chosen |= {"logdir": logdir, "to": "en", "n_best": None, "set": [], "runtime": "local"}
        chosen |= {"processes": 1, "worker": 0, "scores": False}
        chosen |= {
            name: value.replace("TMP", str(tmp_path)) if isinstance(value, str) else value
            for name, value in values.items()
        }
        flags = types.SimpleNamespace(**chosen)
        monkeypatch.setattr(translate, "FLAGS", flags)
        monkeypatch.setattr(translate.runtimes, "FLAGS", flags)
        translate.main([*arguments])

    return run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"to": "xx"}, "does not translate into 'xx'; it knows .*en"),
        ({"to": "EN"}, r"does not translate into 'EN'; .* Did you mean 'en'\?$"),
        ({"beam_size": "10000"}, "beam_size must be 1 to 64, got 10000"),
        ({"output": "TMP/o.txt.gz"}, r"o\.txt\.gz: what is written is not .* Give .*o\.txt, and"),
        ({"input": "TMP", "arguments": ()}, "a directory"),
        *(({name: "", "arguments": ()}, f"--{name} is empty") for name in FILES),
        ({"score": "TMP/no_lines"}, "no_lines has 0 lines and the input has more; give one"),
        ({"score": "TMP/two_lines"}, "the input has 1 lines and .*two_lines has more; give one"),
        ({"score": "TMP/two_lines", "output": "TMP/two_lines"}, "two_lines is the same file as"),
        (
            {"score": "TMP/x", "input": "TMP/two_lines", "output": "TMP/link", "arguments": ()},
            "link is the same file as the input .*two_lines, which it would replace. Give another",
        ),
        ({"arguments": ["mi", "ka\udcff"]}, "the arguments, line 2: not UTF-8"),
    ],
)
def test_errors(call, tmp_path, values, message):
    """What is wrong is found before the weights are read: the logdir here has none."""
    (tmp_path / "no_lines").touch()
    (tmp_path / "two_lines").write_text("a\nb\n")
    (tmp_path / "link").symlink_to("two_lines")
    values = dict(values)
    arguments = values.pop("arguments", ["kara"])
    with pytest.raises((ValueError, OSError), match=message):
        call(arguments, **values)


def test_a_line_is_answered_before_the_next_is_written(tmp_path, call, monkeypatch):
    logdir = str(random_logdir(tmp_path / "model", SMALLEST).path)
    lines = ["kara mi", "mi. so."]
    expected = [f"{best[0].text}\n".encode() for best in lm.load(logdir).translate(lines)]
    asked = [f"{line}\n".encode() for line in lines]
    assert converse(monkeypatch, lambda: call((), logdir=logdir), asked) == expected


@pytest.mark.slow
def test_processes_write_what_one_writes(tmp_path, call):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("".join(f"mi {'kara ' * (n % 3)}\n" for n in range(4200)))
    arguments = (f"--logdir={logdir}", f"--input={source}", f"--output={output}", "--scores")
    succeed("translate", *arguments, "--processes=2")
    call((), logdir=str(logdir), input=str(source), output="TMP/alone", scores=True)
    assert output.read_bytes() == (tmp_path / "alone").read_bytes()
    assert output.read_bytes().count(b"\n") == 4200


def test_scores_from_pipes(tmp_path, call, capsys, monkeypatch):
    logdir = str(random_logdir(tmp_path / "model", SMALLEST).path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def score(translations):
        writer = threading.Thread(target=pipe.write_text, args=[translations])
        writer.start()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"kara\nmi\n")))
        try:
            call((), logdir=logdir, score="TMP/pipe")
        finally:
            writer.join()
        return [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]

    assert score("so\nra\n") == ["so", "ra"]
    with pytest.raises(ValueError, match="pipe has 1 lines and the input has more"):
        score("so\n")
    with pytest.raises(ValueError, match=r"the input has 2 lines and .*pipe has more"):
        score("so\nra\nti\n")


def test_scores_of_given_translations(tmp_path, call, capsys):
    logdir = random_logdir(tmp_path / "model", SMALLEST).path
    sources, targets = ["kara mi", "", "mi\x85ra \U0001f600"], ["so\u2028ra\t", "ti", ""]
    for name, lines in (("sources", sources), ("targets", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    given = {"logdir": str(logdir), "input": "TMP/sources", "score": "TMP/targets"}
    call((), **given)
    rows = [line.split("\t", 1) for line in capsys.readouterr().out.split("\n")[:-1]]
    scores = lm.load(logdir).score(sources, targets, "en")
    assert [text for _, text in rows] == targets
    expected = [score.log_prob for score in scores]
    np.testing.assert_allclose([float(value) for value, _ in rows], expected, atol=1e-3)
    call((), **given, output="TMP/scores", set=["decoding.tokens=True"])
    written = [json.loads(line) for line in (tmp_path / "scores").read_text().split("\n")[:-1]]
    for row, text, score in zip(written, targets, scores, strict=True):
        assert row == {"text": text, **score.as_json()}
