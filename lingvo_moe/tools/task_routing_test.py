"""Models that route by task, from training to the exported model."""

import dataclasses
import functools
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.evaluation import load_translator, translate_split
from lingvo_moe.jobs.training import train_model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK, dataset
from lingvo_moe.training.checkpoint import Best

PAIRS = ("qna-en", "qnu-en", "qta-en", "qto-en")


def task_of(kind, *overrides):
    texts = [*SHRINK, f"model.moe.router=ByTask(task='{kind}')", *overrides]
    return TranslationTask(override(get_params("tiny.MoE"), texts), PAIRS)


class TestTaskId:
    """The task of a pair of languages."""

    @pytest.mark.parametrize(
        ("kind", "languages", "task"),
        [
            ("source", ("qta", "en"), 2),
            ("pair", ("qto", "en"), 3),
            ("target", (None, "en"), 0),
            ("target", ("qto", "en"), 0),
        ],
    )
    def test_is_that_of_training(self, kind, languages, task):
        assert task_of(kind).task_id(*languages) == task
        assert task_of(kind).needs_source_language == (kind != "target")

    def test_a_model_of_some_pairs_knows_their_tasks_alone(self):
        task = task_of("source", "input.pairs=('qnu-en','qto-en')")
        assert task.trained_tasks == {"qnu": 1, "qto": 3}
        with pytest.raises(ValueError, match=r"routes by source .*'qna'; it was trained on qnu, q"):
            task.task_id("qna", "en")

    def test_a_pair_without_training_text_is_not_trained(self):
        pairs = ("de-en", "en-fr", "de-fr")  # de-fr has lines of dev and test only
        task = dataclasses.replace(task_of("pair"), pairs=pairs, seen_pairs=pairs[:2])
        assert task.trained_tasks == {"de-en": 0, "en-fr": 2}
        assert [task.has_experts_for(pair) for pair in pairs] == [True, True, False]
        with pytest.raises(ValueError, match=r"no experts for 'de-fr'; it was trained on de-en, e"):
            task.task_id("de", "fr")
        by_target = dataclasses.replace(task_of("target"), pairs=pairs, seen_pairs=pairs[:2])
        assert by_target.has_experts_for("de-fr")
        assert by_target.trained_tasks == {"en": 0, "fr": 1}

    @pytest.mark.parametrize("kind", ["source", "pair"])
    def test_the_source_is_required(self, kind):
        with pytest.raises(ValueError, match=rf"routes by {kind}; give source_language.*qna.*qt"):
            task_of(kind).task_id(None, "en")


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Kind of task -> a model with one expert for each task, and its translator."""

    @functools.cache
    def make(kind):
        model_dir = _trained(kind, tmp_path_factory.mktemp(kind))
        return model_dir, load_translator(model_dir, Local(model_dir.task))[0]

    return make


def _trained(kind, logdir):
    overrides = [
        f"model.moe.router=ByTask(task='{kind}', num_tasks=4)",
        "model.num_encoder_layers=1",
        "model.num_decoder_layers=1",
        "model.moe.every_n=1",
        "model.moe.num_experts=4",
        "model.moe.gating=Switch()",
        "train.max_steps=2",
        "train.eval_every=2",
        "train.dev_bleu_sentences=8",
        "decoding.beam_size=2",
        "decoding.length_ratio=0.0",
        "decoding.length_offset=5",
        "decoding.length_penalty=5.0",  # prefers the longest
    ]
    if kind == "source":
        lines = []
        train_model(training_job(logdir, *overrides, report=lines.append))
        assert any("dev BLEU" in line for line in lines)
        model_dir = ModelDir.open(logdir)
        tensors = {name: np.array(x) for name, x in model_dir.read_checkpoint().tensors.items()}
    else:
        model_dir = ModelDir.create(logdir, "tiny.MoE", [*SHRINK, *overrides], dataset())
        runtime = Local(model_dir.task)
        runtime.initialize(0)
        tensors = {name: x.numpy() for name, x in runtime.state().items()}
    pieces = model_dir.vocabulary("target")
    texts = pieces.decode([[i] for i in range(pieces.size)])
    silent = [i for i, text in enumerate(texts) if not text.strip().isalpha()]
    tensors = {name: _audible(name, value, silent) for name, value in tensors.items()}
    model_dir.checkpoints.save(3, tensors, Best(3))
    return model_dir


def _audible(name, value, silent):
    """A weight changed so that a wrong task changes translations: after few steps experts are
    similar.

    Args:
        name: the weight's.
        value: the weight.
        silent: ids of target pieces that are no letters.
    """
    if name.startswith("theta/") and name.endswith("/feed_forward/task_gate"):
        return 20.0 * np.eye(4, dtype=np.float32)  # task i goes to expert i
    if name.startswith("theta/") and "/experts/" in name:
        return 4.0 * value
    if name == "theta/decoder/embedding/table":
        value = value.copy()
        value[silent] = 0.0
    return value


def _translate(translator, sentences, source):
    return [best[0].text for best in translator(sentences, "en", source)]


def _client(monkeypatch, capsys, export, *arguments):
    """What the exported client prints."""
    monkeypatch.setattr(sys, "argv", ["translate.py", f"--model={export}", *arguments])
    client.main()
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["source", "pair", "target"])
def test_the_exported_model_equals_the_translator(kind, model_of, tmp_path, monkeypatch, capsys):
    model_dir, translator = model_of(kind)
    sentences = [e.source_text for e in dataset().examples("test", "qta-en")[:6]]
    source = None if kind == "target" else "qta"
    ours = _translate(translator, sentences, source)
    assert all(ours)
    SavedModel().export(model_dir, tmp_path)
    flags = () if source is None else ("--source_language=qta",)
    assert _client(monkeypatch, capsys, tmp_path, *flags, *sentences) == ours
    inputs = tf.saved_model.load(tmp_path).signatures["serving_default"].structured_input_signature
    assert ("source_language" in inputs[1]) == (kind != "target")
    if kind != "target":
        # Another task is another expert; without a task there is none.
        other = _client(monkeypatch, capsys, tmp_path, "--source_language=qna", *sentences)
        assert other == _translate(translator, sentences, "qna") != ours
        with pytest.raises(ValueError, match="routes by source language; give --source_language"):
            _client(monkeypatch, capsys, tmp_path, *sentences)
        with pytest.raises(ValueError, match="does not translate from 'fr'; it knows en, "):
            _client(monkeypatch, capsys, tmp_path, "--source_language=fr", *sentences)


@pytest.mark.slow
def test_evaluation_gives_each_pair_its_task(model_of):
    _, translator = model_of("source")
    pairs = [(pair, translator) for pair in ("qta-en", "qna-en")]
    for output in translate_split(pairs, dataset(), "test", lambda line: None):
        assert list(output.hypotheses) == _translate(translator, output.sources, output.pair[:3])


@pytest.mark.slow
def test_the_translate_tool_passes_the_source_language_on(model_of):
    (model_dir, translator), sentences = model_of("source"), ["kara mira", "mira", "tolu kara"]
    flags = [f"--logdir={model_dir.path}", "--source_language=qto"]
    result = succeed("translate", *flags, *sentences)
    assert result.stdout.splitlines() == _translate(translator, sentences, "qto")
