"""A SavedModel and its client, called as its users do but in this process."""

import io
import os
import select
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats import saved_model
from lingvo_moe.serving.formats.base import read_theta
from lingvo_moe.serving.formats.safetensors import Safetensors
from lingvo_moe.serving.formats.saved_model import SavedModel, ServedModel
from lingvo_moe.serving.formats.storage import STORAGES
from lingvo_moe.testing.exports import LINES
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

LONG = "kara " * 10
WITHOUT_WORDS = {15: "10.2", 16: "(https://a.b) "}
BLANK = [7, 8, 9, 10, 11, 12]
HOSTILE = ("\ufeff" + "\r\n".join(LINES) + "\n").encode()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("model"), [*SMALLEST, "input.source_length=16"])


@pytest.fixture(scope="module")
def exported(model_dir):
    output = model_dir.path / "export"
    assert SavedModel().export(model_dir, output) == 1
    return output


@pytest.fixture
def call(exported, monkeypatch, capsysbinary):
    """The client's standard output and error for arguments and standard input."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={exported}", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        client.main()
        return capsysbinary.readouterr()

    return run


@pytest.mark.slow
def test_as_many_lines_as_there_are_and_those_of_the_translator(model_dir, call):
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    expected = [best[0].text for best in translator(LINES, "en", warn=pytest.fail)]
    assert [i for i, text in enumerate(expected) if not text] == BLANK
    assert {i: expected[i] for i in WITHOUT_WORDS} == WITHOUT_WORDS
    assert expected[17] == expected[17].upper()
    out, err = call(stdin=HOSTILE)
    assert out == "".join(f"{text}\n" for text in expected).encode()
    assert not err


@pytest.mark.slow
def test_the_client_prints_no_log_of_sentencepiece(exported):
    command = [sys.executable, str(exported / "translate.py"), "kara"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout
    assert "normalizer" not in result.stderr


def converse(monkeypatch, program, lines):
    """The line that a program answers to each line; the next is written after the answer.

    Raises TimeoutError if there is no answer in two minutes.
    """
    (read, written), (answered, writes) = os.pipe(), os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read, encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", os.fdopen(writes, "w", encoding="utf-8"))
    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    answers = []
    with open(written, "wb", buffering=0) as to, open(answered, "rb", buffering=0) as out:
        for line in lines:
            to.write(line)
            if not select.select([out], [], [], 120)[0]:
                raise TimeoutError(line)
            answers.append(out.readline())
    thread.join()
    return answers


def test_a_line_is_answered_before_the_next_is_written(exported, monkeypatch):
    lines = ["kara mi", "mira so. kara"]
    monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={exported}"])
    answers = converse(monkeypatch, client.main, [f"{line}\n".encode() for line in lines])
    expected = Exported(exported).translate(lines)
    assert answers == [f"{best[0].text}\n".encode() for best in expected]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--to=EN", "kara"], b"", r"into 'EN'; .* Did you mean 'en'\?$"),
        (["--source_language=xx", "kara"], b"", "from 'xx'; it knows .*qna"),
        ([], b"kara\nka\xff\n", "standard input, line 2: not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(call, arguments, stdin, message):
    with pytest.raises((ValueError, OSError), match=message) as error:
        call(*arguments, stdin=stdin)
    assert "\n" not in str(error.value)


def test_a_translation_in_the_graph_is_one_line(model_dir, monkeypatch):
    (ids,) = model_dir.vocabulary("target").encode(["a\u2028b\x1cc"])
    written = BeamOutput(
        np.array([[ids]], np.int32), np.array([[len(ids)]], np.int32), np.zeros([1, 1], np.float32)
    )
    monkeypatch.setattr(saved_model, "beam_search", lambda *_: written)
    module = ServedModel(model_dir, read_theta(model_dir)[0])
    outputs = module.translate(tf.constant(["kara"]), tf.constant("en"))
    assert outputs["translations"].numpy().tolist() == [[b"a b c"]]


class TestOutput:
    """An export appears when it is complete, and never replaces files of the user."""

    def test_the_program_imports_nothing_of_this_package(self, exported):
        modules = (
            "batching.py",
            "console.py",
            "languages.py",
            "lines.py",
            "sentences.py",
            "surface.py",
            "translate.py",
        )
        assert tuple(sorted(path.name for path in exported.glob("*.py"))) == modules
        for name in modules:
            assert "import lingvo_moe" not in (exported / name).read_text()
            assert "from lingvo_moe" not in (exported / name).read_text()
        assert "from lines import" in (exported / "translate.py").read_text()


@pytest.mark.slow
def test_smaller_files_translate_alike(model_dir, exported, tmp_path):
    sizes = {"float32": weights_size(exported)}
    expected = Exported(exported).translate(LINES)
    for dtype, tolerance in (("bfloat16", 0.05), ("int8", 0.1)):
        SavedModel(STORAGES[dtype]).export(model_dir, tmp_path / dtype)
        sizes[dtype] = weights_size(tmp_path / dtype)
        smaller = Exported(tmp_path / dtype)
        together = smaller.translate(LINES)
        alone = [smaller.translate([line])[0] for line in LINES[:3]]
        assert [best[0].text for best in together[:3]] == [best[0].text for best in alone]
        scores = np.array([[best[0].score for best in side] for side in (expected, together)])
        np.testing.assert_allclose(*scores, rtol=tolerance)
        assert not np.array_equal(*scores)
    # Half and a quarter of the matrices, which are nearly all there is, and scales.
    assert sizes["bfloat16"] < 0.56 * sizes["float32"]
    assert sizes["int8"] < 0.45 * sizes["float32"]


@pytest.mark.slow
def test_int8_weights_are_about_a_quarter(tmp_path):
    """Of tiny.MoE; the graph, 3 MB, is not counted."""
    model_dir = random_logdir(tmp_path / "model", [])
    SavedModel(STORAGES["int8"]).export(model_dir, tmp_path / "int8")
    weights = model_dir.task.lay_out(read_theta(model_dir)[0].map(tf.constant))
    whole = sum(weight.numpy().nbytes for _, weight in weights.flatten())
    assert weights_size(tmp_path / "int8") <= 0.26 * whole


def test_the_graph_holds_each_vocabulary_once(model_dir, exported):
    graph = (exported / "saved_model.pb").read_bytes()
    for side in ("source", "target"):
        assert graph.count(model_dir.vocabulary(side).model_bytes) == 1


def weights_size(export):
    return (export / "variables" / "variables.data-00000-of-00001").stat().st_size


class TestSafetensors:
    """Weights, params and vocabularies, read as a logdir."""

    @pytest.fixture(scope="class")
    def weights(self, model_dir):
        output = model_dir.path / "weights"
        assert Safetensors().export(model_dir, output) == 1
        return output

    @pytest.mark.slow
    def test_it_translates_as_the_logdir(self, model_dir, weights):
        ours, theirs = lm.load(model_dir.path), lm.load(weights)
        assert theirs.step == 1
        assert theirs.translate(LINES[:3]) == ours.translate(LINES[:3])

    def test_int8_is_refused_before_anything_is_there(self, model_dir, tmp_path):
        with pytest.raises(ValueError, match="int8; pass --dtype=bfloat16"):
            Safetensors(STORAGES["int8"]).export(model_dir, tmp_path / "int8")
        assert not list(tmp_path.iterdir())


def test_options_out_of_range_are_a_line(exported):
    model = tf.saved_model.load(str(exported))
    for options in (
        {"length_ratio": 1e30},
        {"top_p": 2.0, "temperature": 1.0},
        {"temperature": float("inf")},
    ):
        with pytest.raises(ValueError, match="Allowed") as error:
            client.call(model.translate_with, ["kara"], target_language="en", **options)
        assert "\n" not in str(error.value)


def test_options_that_an_export_cannot_have_are_refused(model_dir, tmp_path):
    changed = model_dir.with_overrides(["decoding.target_prefix='the'"])
    with pytest.raises(ValueError, match="--set=decoding"):
        SavedModel().export(changed, tmp_path / "export")
