import dataclasses
import io
import sys
import types

import pytest

from lingvo_moe.config.params import override as params_override
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.formats.ctranslate2 import CTranslate2
from lingvo_moe.serving.formats.storage import STORAGES
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.logdirs import random_logdir

# A beam of 1 keeps what it finds on the way; always the most probable token is this.
GREEDY = "decoding.sampling=Sampling(top_k=1)"
LINES = ["kara mi", "ti ra so kara mi ti ra so kara mi ti ra so", "", "mi\u2028ra", "mira"]


def trained(path, *overrides):
    """A model without experts with weights drawn at random."""
    decoding = ("decoding.length_ratio=0.5", "decoding.length_penalty=5.0")
    return random_logdir(path, (*tiny_world.SHRINK, "model.moe=None", *decoding, *overrides))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("dense"), "model.activation=SwiGLU()")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.moe=MoEParams(num_experts=8)", "model.moe=None only"),
        ("model.activation=GELU()", None),
        ("model.use_bias=True", "model.use_bias=False only"),
        ("language_tags=OnBothSides()", "language_tags=OnSource"),
        ("decoding.target_prefix='the'", "target_prefix='' only"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(dense, tmp_path, override, message):
    pytest.importorskip("ctranslate2")
    model_dir = dataclasses.replace(dense, params=params_override(dense.params, [override]))
    if message is None:
        CTranslate2().check(model_dir)
        return
    with pytest.raises(ValueError, match=message):
        CTranslate2().export(model_dir, tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_message_names_the_cure(dense, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ValueError, match="pip install ctranslate2"):
        CTranslate2().export(dense, tmp_path / "export")


class TestTranslations:
    """With the package, greedy translations are ours."""

    @pytest.fixture(scope="class", autouse=True)
    def package(self):
        pytest.importorskip("ctranslate2")

    @staticmethod
    def both(model_dir, output):
        alone = model_dir.with_overrides(["decoding.beam_size=1"])
        greedy = alone.with_overrides([GREEDY])
        CTranslate2().export(alone, output)
        translator, _ = load_translator(greedy, Local(greedy.task))
        ours = [best[0].text for best in translator(LINES, "en")]
        return ours, list(client.translate(client.WithCTranslate2(output), LINES))

    def test_of_a_gated_activation(self, dense, tmp_path):
        ours, theirs = self.both(dense, tmp_path / "export")
        assert [len(text) > 0 for text in theirs] == [True, True, False, True, True]
        assert theirs == ours

    @pytest.mark.slow
    def test_of_heads_of_another_size(self, tmp_path):
        model_dir = trained(tmp_path / "dense", "model.head_dim=4", "model.activation=GELU()")
        ours, theirs = self.both(model_dir, tmp_path / "export")
        assert theirs == ours

    def test_of_sentences_longer_than_its_limit(self, tmp_path):
        """CTranslate2 by itself reads 1,024 pieces of a source, without a word."""
        model_dir = trained(tmp_path / "long", "input.source_length=1200")
        CTranslate2().export(model_dir, tmp_path / "export")
        model = client.WithCTranslate2(tmp_path / "export")
        translator, seen = model._translator, []

        def translate_batch(rows, **options):
            seen.append((len(rows[0]), options["max_input_length"]))
            return translator.translate_batch(rows, **options)

        model._translator = types.SimpleNamespace(translate_batch=translate_batch)
        long = "kara mi " * 290
        list(client.translate(model, [long]))
        assert seen == [(len(model._source.encode(long)) + 1, 0)]
        assert seen[0][0] > 1024

    @pytest.mark.parametrize("least", [5, 99])
    @pytest.mark.slow
    def test_with_the_params_of_decoding(self, dense, tmp_path, least):
        overrides = [f"decoding.min_length={least}", "decoding.no_repeat_ngram=1"]
        ours, theirs = self.both(dense.with_overrides(overrides), tmp_path / "export")
        assert theirs == ours
        assert ours != self.both(dense, tmp_path / "plain")[0]

    def test_the_client(self, dense, tmp_path, monkeypatch, capsys):
        output = tmp_path / "export"
        CTranslate2(STORAGES["int8"]).export(dense, output)
        monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={output}"])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
        client.main()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(LINES)
        assert lines[2] == ""
