"""An export in memory gives the same translations as the logdir."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.format import read_theta
from lingvo_moe.serving.saved_model import SavedModel, ServedModel
from lingvo_moe.serving.tf_serving import TFServing
from lingvo_moe.tasks.evaluation import load_translator
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

SENTENCES = ["kara mi", "", "ka\u2028ra", "mi " * 40, "mira so"]


def _random(path, *overrides):
    more = ("input.source_length=4", "decoding.n_best=2")
    return random_logdir(path, [*SMALLEST, *more, *overrides])


def _save(model_dir, output):
    """The graph alone: what else the format writes is tested elsewhere."""
    module = ServedModel(model_dir, read_theta(model_dir)[0])
    tf.saved_model.save(module, str(output), signatures=module.translate)
    return output


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return _random(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def exported(model_dir):
    return Exported(_save(model_dir, model_dir.path / "export"))


def test_translations_are_those_of_the_logdir(model_dir, exported):
    translator, _ = load_translator(model_dir, Local(model_dir.task))
    warnings, cut = [], []
    expected = translator(SENTENCES, "en", warn=warnings.append)
    got = exported.translate(SENTENCES, "en", n_best=2, warn=cut.append, batch_tokens=16)
    assert [[t.text for t in best] for best in got] == [[t.text for t in b] for b in expected]
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose([t.score for t in ours], [t.score for t in theirs], atol=1e-4)
    assert cut == warnings
    assert "line 4" in cut[0]
    best_alone = exported.translate(SENTENCES, "en", warn=cut.append)
    assert [best[0].text for best in got] == [best.text for (best,) in best_alone]


def test_it_knows_its_model(model_dir, exported):
    assert exported.languages == sorted(model_dir.tags)
    assert exported.pairs == model_dir.pairs
    assert (exported.n_best, exported.max_pieces) == (2, 4 * 4 - 2)
    assert not exported.needs_source_language
    lengths = [len(ids) for ids in model_dir.vocabulary("source").encode(SENTENCES)]
    assert exported.count_pieces(SENTENCES) == lengths
    assert exported.count_pieces([]) == exported.translate([], "en") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "xx"}, "does not translate into 'xx'; it knows .*en"),
        ({"n_best": 3}, "n_best must be 1 to 2, got 3; export .*decoding.n_best"),
        ({"n_best": 0}, "n_best must be 1 to 2, got 0"),
    ],
)
def test_errors(exported, arguments, message):
    with pytest.raises(ValueError, match=message):
        exported.translate(["kara"], **arguments)


def test_a_model_that_routes_by_source_language_is_told_it(tmp_path):
    model_dir = _random(tmp_path, "model.moe.router=ByTask(task='source')")
    exported = Exported(_save(model_dir, tmp_path / "export"))
    source = exported.pairs[0].partition("-")[0]
    assert exported.needs_source_language
    assert len(exported.translate(["kara"], source_language=source)) == 1
    with pytest.raises(ValueError, match="routes by source language; give source_language"):
        exported.translate(["kara"])
    with pytest.raises(ValueError, match="has no experts for that source"):
        exported.translate(["kara"], source_language="xx")


def test_what_is_no_export_is_refused(tmp_path):
    with pytest.raises(OSError, match="SavedModel file does not exist"):
        Exported(tmp_path)
    other = tf.Module()
    other.translate = tf.function(lambda: {"x": tf.constant(1)}, input_signature=[])
    tf.saved_model.save(other, str(tmp_path / "other"), signatures=other.translate)
    with pytest.raises(ValueError, match="earlier version of lingvo_moe; export the model again"):
        Exported(tmp_path / "other")


@pytest.mark.parametrize("name", ["a[1]", "what?", "st*r", "back\\slash"])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path, name):
    path = tmp_path / name / "model"
    for use in (
        lambda: Exported(path),
        lambda: SavedModel().export(None, path),
        lambda: TFServing().export(None, path),
    ):
        with pytest.raises(ValueError, match=r"cannot load a model from .* Choose another name"):
            use()
    assert list(tmp_path.iterdir()) == []
