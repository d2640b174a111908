"""An export in memory gives the same translations as the logdir."""

import dataclasses
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.decoding.fitted import FITTED, Fitted
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.nn.tensorflow_private import SavedModelProto
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving import client
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats.base import read_theta
from lingvo_moe.serving.formats.saved_model import ServedModel
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

SEVERAL = "kara mi so ti.  mi kara so.  kara mi kara."
SENTENCES = [
    "kara mi",
    "",
    "ka\u2028ra",
    "mi " * 40,
    SEVERAL,
    "10.2",
    "KARA MI, SO TI.",
    "Mi. KARA MI!",
]


def _random(path, *overrides):
    more = ("input.source_length=16", "decoding.n_best=2")
    fitted = [f"decoding.{name}=FROM_DATA" for name in FITTED]
    made = random_logdir(path, [*SMALLEST, *more, *fitted, *overrides])
    own = Fitted(1.0, {"en": 5.0}, {"en": 0.5, "xx": 9.0}, {"en": 0.3}, decomposed=["en"])
    made = dataclasses.replace(made, fitted=own)
    made.save()
    return made


def _save(model_dir, output):
    """The graph alone: what else the format writes is tested elsewhere."""
    ServedModel(model_dir, read_theta(model_dir)[0]).save(output)
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
    assert cut == warnings == []
    best_alone = exported.translate(SENTENCES, "en", warn=cut.append)
    assert [best[0].text for best in got] == [best.text for (best,) in best_alone]


def test_translations_have_the_form_of_their_language(exported):
    lines, prefix = ["kara mi", "KARA MI"], "s\xf2"
    found = exported.translate(lines, target_prefix=prefix)
    assert [best[0].text[:3] for best in found] == ["so\u0300", "SO\u0300"]
    given = tf.constant(lines), tf.constant("en")
    found = exported.model.translate_with(*given, target_prefix=tf.constant(prefix))
    best = found["translations"][:, 0].numpy()
    assert [text.decode()[:3] for text in best] == ["so\u0300", "SO\u0300"]


@pytest.mark.parametrize("text", ["\ufffd", "▁"])
def test_what_the_vocabulary_reads_as_nothing_is_copied(exported, text):
    assert exported.translate([text]) == [[(text, 0.0, (), ())]]


def test_it_knows_its_model(model_dir, exported):
    assert exported.languages == sorted(model_dir.tags)
    assert exported.pairs == model_dir.pairs
    assert exported.max_pieces == 4 * 16 - 2
    assert not exported.needs_source_language
    lengths = [len(ids) for ids in model_dir.vocabulary("source").encode(SENTENCES)]
    assert exported.count_pieces(SENTENCES) == lengths
    assert exported.count_pieces([]) == exported.translate([], "en") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "EN"}, r"does not translate into 'EN'; .* Did you mean 'en'\?$"),
        ({"source_language": "xx"}, "does not translate from 'xx'; it knows .*qna"),
        ({"n_best": 65}, "n_best must be 1 to 64, got 65"),
        ({"separate_caches_from": 9}, "separate_caches_from is no option of this export"),
        ({"source_prefix": "mi " * 20}, "source_prefix has .* at most 7"),
        ({"target_prefix": "mi " * 20}, "target_prefix has .* at most 14"),
    ],
)
def test_errors(exported, arguments, message):
    with pytest.raises(ValueError, match=message):
        exported.translate(["kara"], **arguments)


SEARCH = {
    "n_best": 3,
    "beam_size": 5,
    "min_length": 20,
    "length_penalty": 1.0,
    "length_ratio": 2.0,
    "length_offset": 8,
    "no_repeat_ngram": 2,
    "target_prefix": "kara so ",
    "tokens": True,
}
SAMPLING = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        SEARCH,
        {"n_best": 2, "sampling": SAMPLING},
        {"source_prefix": "so ", "target_prefix": "kara "},
    ],
    ids=["search", "sampling", "texts"],
)
def test_options_are_those_of_the_logdir(model_dir, exported, options):
    sentences, warnings, cut = [*SENTENCES, "語" * 30], [], []
    expected = lm.load(model_dir.path).translate(sentences, warn=warnings.append, **options)
    got = exported.translate(sentences, warn=cut.append, batch_tokens=32, **options)
    assert _without_numbers(got) == _without_numbers(expected)
    np.testing.assert_allclose(_numbers(got), _numbers(expected), rtol=1e-5)
    assert cut == warnings


def _numbers(results):
    return [
        n
        for best in results
        for t in best
        for n in (t.score, *(token.log_prob for token in t.tokens))
    ]


def _without_numbers(results):
    return [
        [(t.text, t.source, [(token.text, token.source) for token in t.tokens]) for t in best]
        for best in results
    ]


def test_scores_of_given_translations(model_dir, exported):
    given = ["kara mi", "mi " * 40], ["so", "the cat ra"]
    expected = lm.load(model_dir.path).score(*given)
    for ours, theirs in zip(exported.score(*given), expected, strict=True):
        assert ours.tokens == theirs.tokens
        np.testing.assert_allclose(ours.token_log_probs, theirs.token_log_probs, atol=1e-4)
        np.testing.assert_allclose(ours.log_prob, theirs.log_prob, atol=1e-3)
    with pytest.raises(ValueError, match=r"Line 2: the source .* 4,096"):
        exported.score(["kara", "kara " * 4000], ["so", "ti"])


def test_options_are_arguments_of_a_function_in_the_export(model_dir, exported):
    model = tf.saved_model.load(model_dir.path / "export")
    given = tf.constant(["kara mi"]), tf.constant("en")
    plain, same = model.translate(*given), model.translate_with(*given)
    assert plain["translations"].numpy().tolist() == same["translations"].numpy().tolist()
    one = model.translate_with(*given, n_best=tf.constant(1), target_prefix=tf.constant("kara so"))
    assert one["translations"].shape == [1, 1]
    assert one["translations"].numpy()[0, 0].startswith(b"kara so")
    defaults = model.about()["options"]
    assert (defaults["n_best"], defaults["temperature"]) == (2, 0)
    signature = model.signatures["with_options"]
    by_name = {"sentences": given[0], "target_language": given[1]} | defaults
    assert (signature(**by_name)["translations"] == plain["translations"]).numpy().all()


def test_functions_share_the_network(model_dir, exported):
    """The graph has one encoder and one decoder step, whatever the beam size."""
    path = model_dir.path / "export" / "saved_model.pb"
    (graph,) = SavedModelProto.FromString(path.read_bytes()).meta_graphs
    ops = [[node.op for node in f.node_def] for f in graph.graph_def.library.function]
    assert sum("OptionalGetValue" in nodes for nodes in ops) == 2


@pytest.mark.parametrize("tag", [0, 1])
def test_the_score_of_a_text_is_that_of_the_tokens_of_its_sentences(monkeypatch, exported, tag):
    """Translations that begin with a tag have one tag, not three."""
    about, texts = exported.model.about(), SEVERAL.split("  ")
    about["expected_ratio"] *= 0.0  # all tokens count
    parts = [best[0] for best in exported.translate(texts, tokens=True)]
    lengths = [len(part.tokens) for part in parts]
    if tag:
        del about["options"]["target_prefix"]
    functions = {n: getattr(exported.model, n) for n in ("translate", "count_pieces")}
    fake = types.SimpleNamespace(about=lambda: about, **functions)
    monkeypatch.setattr(client, "load", lambda path: (fake, {"target_language"}))

    def penalty(length):
        return ((5 + tag + length) / 6) ** 5.0  # SMALLEST

    log_prob = sum(part.score * penalty(n) for part, n in zip(parts, lengths, strict=True))
    ((merged,),) = Exported("fake").translate([SEVERAL])
    np.testing.assert_allclose(merged.score, log_prob / penalty(sum(lengths)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gating",
    [
        "TopK(k=2,scores=Sigmoid(),bias=LossFree(rate=0.5),balance=BySequence())",
        "TopK(k=2,limit=NodeLimited(nodes=2,kept=1))",
    ],
)
def test_exports_route_as_the_model_does(tmp_path, gating):
    made = _random(tmp_path, f"model.moe.gating={gating}")
    expected = lm.load(made.path).translate(SENTENCES)
    found = Exported(_save(made, tmp_path / "export")).translate(SENTENCES)
    assert _without_numbers(found) == _without_numbers(expected)
    np.testing.assert_allclose(_numbers(found), _numbers(expected), atol=1e-4)


@pytest.mark.slow
def test_a_model_that_routes_by_source_language_is_told_it(tmp_path):
    model_dir = _random(tmp_path, "model.moe.router=ByTask(task='source')")
    exported = Exported(_save(model_dir, tmp_path / "export"))
    source = exported.pairs[0].partition("-")[0]
    assert exported.needs_source_language
    assert len(exported.translate(["kara"], source_language=source)) == 1
    with pytest.raises(ValueError, match="routes by source language; give source_language"):
        exported.translate(["kara"])
    with pytest.raises(ValueError, match="has no experts for that source"):
        exported.translate(["kara"], source_language="en")


def test_what_is_no_export_is_refused(tmp_path):
    with pytest.raises(OSError, match="SavedModel file does not exist"):
        Exported(tmp_path)
    other = tf.Module()
    other.translate = tf.function(lambda: {"x": tf.constant(1)}, input_signature=[])
    tf.saved_model.save(other, str(tmp_path / "other"), signatures=other.translate)
    with pytest.raises(ValueError, match="lingvo-moe-export did not make"):
        Exported(tmp_path / "other")


def test_damaged_weights_are_said(exported, tmp_path):
    shutil.copytree(exported.path, tmp_path / "cut")
    (data,) = (tmp_path / "cut/variables").glob("*.data*")
    os.truncate(data, 1000)
    with pytest.raises(ValueError, match=r"cut is damaged .* Copy it again"):
        Exported(tmp_path / "cut")
