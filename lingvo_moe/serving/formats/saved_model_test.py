"""A SavedModel and its client, called as its users do but in this process."""

import io
import itertools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.core import safetensors
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats import saved_model
from lingvo_moe.serving.formats.base import directory_size, read_theta
from lingvo_moe.serving.formats.safetensors import Safetensors
from lingvo_moe.serving.formats.saved_model import SavedModel, ServedModel
from lingvo_moe.serving.formats.storage import STORAGES
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.model_weights import WEIGHTS
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.conversation import converse
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


def test_as_many_lines_as_there_are_and_those_of_the_translator(model_dir, call):
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    expected = [best[0].text for best in translator(LINES, "en", warn=pytest.fail)]
    assert [i for i, text in enumerate(expected) if not text] == BLANK
    assert {i: expected[i] for i in WITHOUT_WORDS} == WITHOUT_WORDS
    assert expected[17] == expected[17].upper()
    out, err = call("--batch_tokens=16", stdin=HOSTILE)
    assert out == "".join(f"{text}\n" for text in expected).encode()
    assert not err


def test_the_client_prints_no_log_of_sentencepiece(exported):
    command = [sys.executable, str(exported / "translate.py"), "--set=n_best=2", "kara"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout
    assert "normalizer" not in result.stderr


def test_a_line_is_answered_before_the_next_is_written(exported, monkeypatch):
    lines = ["kara mi", "mira so. kara"]
    monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={exported}"])
    answers = converse(monkeypatch, client.main, [f"{line}\n".encode() for line in lines])
    expected = Exported(exported).translate(lines)
    assert answers == [f"{best[0].text}\n".encode() for best in expected]


def test_options_of_the_client(model_dir, call):
    texts = [*LINES[:2], "Mira kara. So mira!"]
    options = {"n_best": 2, "min_length": 7, "target_prefix": "the "}
    expected = lm.load(model_dir.path).translate(texts, "en", **options)
    flags = (f"--set={name}={value}" for name, value in options.items())
    out = call("--batch_tokens=1", *flags, *texts).out.decode()
    assert out == "".join(f"{t.score:.4f}\t{t.text}\n" for best in expected for t in best)
    without = call("--set=decoding.target_prefix=the ", "--scores", "kara").out.decode()
    assert without.split("\t")[1].startswith("the")


def test_tokens_are_those_of_the_logdir(model_dir, call):
    sentences = ["kara mi", "", "10.2"]
    expected = lm.load(model_dir.path).translate(sentences, "en", n_best=2, tokens=True)
    out = call("--tokens", "--n_best=2", *sentences).out.decode()
    rows = [json.loads(line) for line in out.splitlines()]
    for row, translation in zip(rows, itertools.chain(*expected), strict=True):
        tokens = [(token["text"], token["source"]) for token in row.get("tokens", ())]
        assert (row["text"], tokens) == (
            translation.text,
            [(token.text, token.source) for token in translation.tokens],
        )
        assert row.get("source", []) == list(translation.source)


def test_scores_of_given_translations(model_dir, call, tmp_path):
    sources, targets = ["kara mi", "", "mi " * 40], ["so\u2028ra", "ti", ""]
    (tmp_path / "targets").write_text("".join(f"{target}\n" for target in targets))
    scores = lm.load(model_dir.path).score(sources, targets, "en")
    arguments = (f"--score={tmp_path / 'targets'}", "--batch_tokens=8")
    out = call(*arguments, stdin="".join(f"{source}\n" for source in sources).encode()).out
    values, texts = zip(*(line.split("\t") for line in out.decode().split("\n")[:-1]), strict=True)
    assert list(texts) == targets
    expected = [score.log_prob for score in scores]
    np.testing.assert_allclose(np.array(values, float), expected, atol=1e-3)
    lines = call(*arguments, "--tokens", *sources).out.decode().split("\n")[:-1]
    for line, text, score in zip(lines, targets, scores, strict=True):
        row = json.loads(line)
        assert (row["text"], [t["text"] for t in row["tokens"]]) == (text, list(score.tokens))
        values = [t["log_prob"] for t in row["tokens"]]
        np.testing.assert_allclose(values, score.token_log_probs, atol=1e-4)
        np.testing.assert_allclose(row["log_prob"], score.log_prob, atol=1e-3)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_is_too_long_to_be_scored_is_refused(call, tmp_path, side):
    sentences = {"source": "kara", "target": "so", side: "mi " * 5000}
    (tmp_path / "targets").write_text(f"{sentences['target']}\n")
    with pytest.raises(ValueError, match="more than 4,096 tokens"):
        call(f"--score={tmp_path / 'targets'}", sentences["source"])


def test_sentences_as_arguments(call):
    out = call("kara mi", "\u3000").out
    assert out == call(stdin="kara mi\n\u3000".encode()).out
    assert out.endswith(b"\n\n")


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--to=EN", "kara"], b"", r"into 'EN'; .* Did you mean 'en'\?$"),
        (["--source_language=xx", "kara"], b"", "from 'xx'; it knows .*qna"),
        ([], b"kara\nka\xff\n", "standard input, line 2: not UTF-8"),
        (["--set=beam=2", "kara"], b"", "'beam'. This export has .*beam_size"),
        (["--set=beam_size=4294967296", "kara"], b"", "beam_size must be an integer"),
        (["--set=top_p=True", "kara"], b"", "top_p must be a number"),
        (["--set=forbidden=[3]", "kara"], b"", "forbidden must be a list of texts"),
        (["--score=/dev/null", "kara"], b"", "/dev/null has 0 lines"),
        (["--score=/dev/null", "--n_best=2"], b"", "--score and --n_best"),
        (["--set=top_p=0.9", "kara"], b"", "top_p needs temperature"),
        (["--set=length_ratio=1e30", "kara"], b"", "Allowed: .* length_ratio 0 to 100, "),
        (["--set=top_p=2", "--set=temperature=1", "kara"], b"", "Allowed: .* 0 < top_p <= 1, .*$"),
        (["--set=temperature=1e39", "kara"], b"", "Allowed: .* other numbers >= 0 and finite"),
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

    def test_a_directory_of_the_user_s_is_left_alone(self, model_dir, tmp_path):
        (tmp_path / "translate.py").write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(ValueError, match="was not made by lingvo-moe-export"):
                SavedModel().export(model_dir, tmp_path, overwrite=overwrite)
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("translate.py", "mine")]

    def test_an_export_is_replaced_when_asked_and_kept_if_the_new_one_fails(
        self, model_dir, exported
    ):
        with pytest.raises(ValueError, match="pass --overwrite"):
            SavedModel().export(model_dir, exported)
        before = sorted(exported.rglob("*"))
        with pytest.raises((ValueError, OSError), match="77"):
            SavedModel().export(model_dir, exported, step=77, overwrite=True)
        assert sorted(exported.rglob("*")) == before

    def test_the_program_imports_nothing_of_this_package(self, exported):
        modules = (
            "batching.py",
            "client_command.py",
            "console.py",
            "languages.py",
            "lines.py",
            "literals.py",
            "parts.py",
            "sentences.py",
            "surface.py",
            "translate.py",
        )
        assert tuple(sorted(path.name for path in exported.glob("*.py"))) == modules
        for name in modules:
            assert "import lingvo_moe" not in (exported / name).read_text()
            assert "from lingvo_moe" not in (exported / name).read_text()
        assert "from lines import" in (exported / "client_command.py").read_text()


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
def test_an_int8_export_is_below_30_percent(tmp_path):
    """Of tiny.MoE; the share of larger models is smaller."""
    model_dir = random_logdir(tmp_path / "model", [])
    SavedModel(STORAGES["int8"]).export(model_dir, tmp_path / "int8")
    size = directory_size(tmp_path / "int8")
    weights = model_dir.task.lay_out(read_theta(model_dir)[0].map(tf.constant))
    rest = size - weights_size(tmp_path / "int8")  # a float32 export has more of it
    assert size <= 0.30 * (sum(w.numpy().nbytes for _, w in weights.flatten()) + rest)


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

    def test_it_translates_as_the_logdir(self, model_dir, weights):
        ours, theirs = lm.load(model_dir.path), lm.load(weights)
        assert theirs.step == 1
        assert theirs.translate(LINES[:3]) == ours.translate(LINES[:3])

    def test_bfloat16_is_half_the_size(self, model_dir, weights, tmp_path):
        Safetensors(STORAGES["bfloat16"]).export(model_dir, tmp_path / "half")
        sizes = [(p / WEIGHTS).stat().st_size for p in (weights, tmp_path / "half")]
        assert sizes[1] < 0.6 * sizes[0]
        assert lm.load(tmp_path / "half").translate(["kara"])

    def test_int8_is_refused_before_anything_is_there(self, model_dir, tmp_path):
        with pytest.raises(ValueError, match="int8; pass --dtype=bfloat16"):
            Safetensors(STORAGES["int8"]).export(model_dir, tmp_path / "int8")
        assert not list(tmp_path.iterdir())

    def test_nothing_trains_in_it(self, weights):
        with pytest.raises(ValueError, match=r"weights of an export .* give another --logdir"):
            ModelDir.for_training(weights, "tiny.MoE", (), tiny_world.dataset())

    def test_a_file_of_another_tool_is_refused(self, model_dir, weights, tmp_path):
        copy = shutil.copytree(weights, tmp_path / "copy")
        safetensors.save(copy / WEIGHTS, {"w": np.ones(2, np.float32)}, {"format": "pt"})
        with pytest.raises(ValueError, match="has no step in its metadata"):
            lm.load(copy)
