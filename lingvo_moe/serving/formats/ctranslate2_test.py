import dataclasses
import io
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.formats.ctranslate2 import CTranslate2, merge_experts, task_number
from lingvo_moe.serving.formats.storage import STORAGES
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.logdirs import random_logdir

BY_TASK = "model.moe.router=ByTask(task='source')"
# A beam of 1 keeps what it finds on the way; always the most probable token is this.
GREEDY = "decoding.sampling=Sampling(top_k=1)"
LINES = ["kara mi", "ti ra so kara mi ti ra so kara mi ti ra so", "", "mi\u2028ra", "mira"]


def trained(path, *overrides):
    """A model with weights drawn at random."""
    decoding = ("decoding.length_ratio=0.5", "decoding.length_penalty=5.0")
    return random_logdir(path, (*tiny_world.SHRINK, *decoding, *overrides))


@pytest.fixture(scope="module")
def by_task(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("by_task"), BY_TASK, "model.activation=SwiGLU()")


def changed(model_dir, *overrides):
    return dataclasses.replace(model_dir, params=override(model_dir.params, overrides))


@pytest.mark.parametrize(
    ("gating", "always_on"),
    [
        ("Top2()", 0),
        ("TopK(k=3)", 0),
        ("Switch()", 0),
        ("Top2(second_expert='never')", 0),
        ("TopK(k=2,scores=Sigmoid(),bias=LossFree(),balance=BySequence())", 2),
    ],
)
def test_one_network_computes_what_the_experts_of_a_task_compute(by_task, gating, always_on):
    model_dir = changed(
        by_task,
        f"model.moe.gating={gating}",
        "model.moe.expert.mask_rate=0.25",
        f"model.moe.shared={f'AlwaysOn(experts={always_on})' if always_on else 'Alone()'}",
    )
    theta = init_theta(model_dir.task.weights(), 5).map(lambda weight: weight.numpy())
    if always_on:
        theta.decoder.layer_01.feed_forward.gating.bias = np.arange(8, dtype=np.float32)
    task = task_number(model_dir, "qna")
    dense = merge_experts(model_dir, theta, task)
    layer = model_dir.task.transformer.decoder.layers["layer_01"].feed_forward
    inputs = tf.constant(np.random.default_rng(0).normal(size=[1, 3, 16]), tf.float32)
    held = theta.decoder.layer_01.feed_forward.map(tf.constant)
    ones = tf.ones([1, 3], tf.int32)
    tokens = Tokens(ones, ones, ones * task)
    expected = layer.fprop(held, inputs, tokens, EVALUATION)
    merged = dense.decoder.layer_01.feed_forward
    assert merged.wi.shape == (16, 32 * (expected.routing.expert.shape[-1] + always_on))
    network = dataclasses.replace(layer.experts, num_experts=None)
    got = network.fprop(merged.map(tf.constant), inputs[0])
    np.testing.assert_allclose(got, expected.outputs[0], atol=1e-5)
    assert "gate" in theta.decoder.layer_01.feed_forward  # the argument is unchanged


@pytest.mark.parametrize(
    ("overrides", "name", "message"),
    [
        (["model.moe.router=ByToken()"], None, "ByToken"),
        (["model.moe.shared=Gated()"], "qna", "its shared expert"),
        (["model.moe.gating=Hash()"], "qna", "Hash.* does not choose"),
        (["model.moe.expert.activation=GELU()"], "qna", "the activation GELU.* SwiGLU"),
        ([], None, r"routes by source, .*task='qna'\)\", or one of qna, qnu"),
        (["model.moe=None"], "qna", "drop task='qna'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(by_task, overrides, name, message):
    with pytest.raises(ValueError, match=message):
        task_number(changed(by_task, *overrides), name)


@pytest.mark.parametrize(
    ("router", "task", "sources", "targets"),
    [
        ("source", "qna", ["qna"], ["en"]),
        ("target", "en", None, ["en"]),
        ("pair", "qna-en", ["qna"], ["en"]),
    ],
)
def test_an_export_knows_the_languages_of_its_task(by_task, router, task, sources, targets):
    model_dir = changed(by_task, f"model.moe.router=ByTask(task='{router}')")
    about = CTranslate2(task=task)._about(model_dir)
    assert about["source_languages"] == (sources or model_dir.source_languages)
    assert about["languages"] == targets == list(about["tags"])
    assert set(about["pairs"]) == ({"qna-en"} if sources else set(model_dir.pairs))
    assert " --to=en " in CTranslate2(task=task).hint(Path("export"), model_dir)


def test_without_the_package_the_message_names_the_cure(by_task, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ValueError, match="pip install ctranslate2"):
        CTranslate2(task="qna").export(by_task, tmp_path / "export")


class TestTranslations:
    """With the package, greedy translations are ours."""

    @pytest.fixture(scope="class", autouse=True)
    def package(self):
        pytest.importorskip("ctranslate2")

    @staticmethod
    def both(model_dir, output, **options):
        alone = model_dir.with_overrides(["decoding.beam_size=1"])
        greedy = alone.with_overrides([GREEDY])
        CTranslate2(**options).export(alone, output)
        translator, _ = load_translator(greedy, Local(greedy.task))
        ours = [best[0].text for best in translator(LINES, "en", options.get("task"))]
        return ours, list(client.translate(client.WithCTranslate2(output), LINES))

    def test_of_a_task(self, by_task, tmp_path):
        ours, theirs = self.both(by_task, tmp_path / "export", task="qna")
        assert [len(text) > 0 for text in theirs] == [True, True, False, True, True]
        assert theirs == ours

    @pytest.mark.slow
    def test_of_a_dense_model_with_heads_of_another_size(self, tmp_path):
        overrides = ("model.moe=None", "model.head_dim=4", "model.activation=GELU()")
        model_dir = trained(tmp_path / "dense", *overrides)
        ours, theirs = self.both(model_dir, tmp_path / "export", storage=STORAGES["float32"])
        assert theirs == ours

    def test_of_sentences_longer_than_its_limit(self, tmp_path):
        """CTranslate2 by itself reads 1,024 pieces of a source, without a word."""
        model_dir = trained(tmp_path / "long", "model.moe=None", "input.source_length=1200")
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
    def test_with_the_params_of_decoding(self, by_task, tmp_path, least):
        overrides = [f"decoding.min_length={least}", "decoding.no_repeat_ngram=1"]
        searched = by_task.with_overrides(overrides)
        ours, theirs = self.both(searched, tmp_path / "export", task="qna")
        assert theirs == ours
        assert ours != self.both(by_task, tmp_path / "plain", task="qna")[0]

    def test_params_of_decoding_that_it_lacks_are_refused(self, by_task, tmp_path):
        searched = by_task.with_overrides(["decoding.target_prefix='the'"])
        with pytest.raises(ValueError, match="target_prefix='', or"):
            CTranslate2(task="qna").export(searched, tmp_path / "export")
        assert not list(tmp_path.iterdir())

    def test_the_client(self, by_task, tmp_path, monkeypatch, capsys):
        output = tmp_path / "export"
        CTranslate2(STORAGES["int8"], task="qna").export(by_task, output)
        monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={output}"])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
        client.main()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(LINES)
        assert lines[2] == ""
        monkeypatch.setattr(sys, "argv", [*sys.argv, "--source_language=qnu", "kara"])
        with pytest.raises(ValueError, match="knows qna"):  # its experts are not exported
            client.main()

    def test_pruning_is_refused(self, by_task, tmp_path):
        with pytest.raises(ValueError, match="only the experts of one task; drop --prune"):
            CTranslate2(task="qna").export(by_task, tmp_path / "x", pruning=Pruning(share=0.5))
        assert not list(tmp_path.iterdir())
