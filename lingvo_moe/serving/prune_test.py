import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.formats.base import read_model, read_theta
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.serving.prune import Pruning, importance
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir

SENTENCES = ["kara mi", "ti ra so", "mira"]


def record(first, confidence, pairs, layers=("encoder/layer_00", "decoder/layer_00")):
    first = np.array(first, float)
    return RoutingRecord(
        layers=layers,
        pairs=tuple(pairs),
        num_experts=np.full(len(layers), first.shape[-1]),
        pair_load=first,
        pair_first=first,
        pair_confidence=np.array(confidence, float),
    )


@pytest.mark.parametrize("wanted", [("a-en",), ("en-a", "b-a", "b-en")])
def test_importance_is_that_of_a_loop_over_tokens(wanted):
    pairs, experts = ["a-en", "b-en", "en-a", "b-a", "a-b"], 6
    rng = np.random.default_rng(1)
    layers = ["encoder/layer_01", "encoder/layer_03", "decoder/layer_01"]
    tokens = [
        (layer, pair, rng.permutation(experts)[:2], rng.uniform())
        for layer in layers
        for pair in pairs
        for _ in range(rng.integers(20, 60))
    ]
    load, first, confidence = np.zeros([3, 3, len(pairs), experts])
    for layer, pair, (best, second), gate in tokens:
        place = layers.index(layer), pairs.index(pair)
        load[*place, [best, second]] += 1
        first[place][best] += 1
        confidence[place][best] += gate
    of = dataclasses.replace(record(first, confidence, pairs, tuple(layers)), pair_load=load)

    got = importance(of, wanted)
    for layer in layers:
        for expert in range(experts):
            scores = []
            for pair in wanted:
                chosen = [best for at, of, (best, _), _ in tokens if (at, of) == (layer, pair)]
                gates = [
                    gate
                    for at, of, (best, _), gate in tokens
                    if (at, of, best) == (layer, pair, expert)
                ]
                share = len(gates) / len(chosen)
                scores.append(share * np.exp(np.mean(gates)) if gates else 0.0)
            np.testing.assert_allclose(got[layer][expert], np.mean(scores), atol=1e-8)


def test_second_choices_decide_between_equal_experts():
    # A router by task: all tokens of a pair choose expert 3 first and expert 2 second.
    of = record([[[0, 0, 0, 9]]], [[[0, 0, 0, 5]]], ["a-en"], ["encoder/l"])
    of = dataclasses.replace(of, pair_load=np.array([[[0, 0, 9, 9]]], float))
    assert np.argsort(-importance(of, ["a-en"])["encoder/l"])[:2].tolist() == [3, 2]


def test_a_pair_without_tokens_is_refused():
    of = record([[[3, 1], [0, 0]]], [[[1, 1], [0, 0]]], ["a-en", "b-en"], ["encoder/l"])
    with pytest.raises(ValueError, match="no dev tokens of b-en"):
        importance(of, ["a-en", "b-en"])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model of 8 experts in each of two layers, drawn at random, and a record of dev."""
    path = tmp_path_factory.mktemp("model")
    made = random_logdir(path, SMALLEST)
    first = np.random.default_rng(0).integers(1, 50, [2, len(made.pairs), 8])
    record(first, first * 0.5, made.pairs).save(made.routing_path)
    return made


@pytest.mark.slow
def test_the_pruned_model_is_the_whole_one_that_never_chooses_the_others(model_dir, tmp_path):
    pruning = Pruning(share=0.75, languages=("qna",))
    assert SavedModel().export(model_dir, tmp_path / "small", pruning=pruning) == 1
    small = Exported(tmp_path / "small")
    assert small.pairs == ("qna-en",)
    assert small.languages == ["en"]

    kept = pruning.kept(model_dir)
    assert [len(experts) for experts in kept.values()] == [2, 2]
    masked = _without(model_dir, kept)
    expected = masked(SENTENCES, "en")
    got = small.translate(SENTENCES, "en")
    assert [best[0].text for best in got] == [best[0].text for best in expected]
    scores = [[best[0].score for best in side] for side in (got, expected)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    whole, _ = load_translator(model_dir, Local(model_dir.task))
    assert [best[0].score for best in whole(SENTENCES, "en")] != scores[1]


def _without(model_dir, kept):
    """The translator of the whole model, whose other experts' scores are -inf."""
    translator_of = load_translator

    class Masked(type(model_dir.params.model.moe.router)):
        def logits(self, theta, inputs, tokens, context):
            scores = super().logits(theta, inputs, tokens, context)
            return tf.where(theta.gate[0] > 1e3, -1e9, scores)

    moe = dataclasses.replace(model_dir.params.model.moe, router=Masked())
    model = dataclasses.replace(model_dir.params.model, moe=moe)
    changed = dataclasses.replace(
        model_dir, params=dataclasses.replace(model_dir.params, model=model)
    )
    runtime = Local(changed.task)

    class Marked:
        """Marks the experts that are left out by a weight of their gates."""

        def restore(self, tensors):
            marked = {name: np.asarray(tensors[name]) for name in tensors}
            for layer, experts in kept.items():
                gate = marked[f"theta/{layer}/feed_forward/gate"].copy()
                gate[0, np.setdiff1d(np.arange(8), experts)] = 1e4
                marked[f"theta/{layer}/feed_forward/gate"] = gate
            runtime.restore(marked)

        translate = staticmethod(runtime.translate)

    return translator_of(changed, Marked())[0]


def test_layers_of_a_scan_are_pruned_each_by_itself(tmp_path):
    overrides = (*SMALLEST, "model.num_encoder_layers=2", "model.num_decoder_layers=2")
    overrides += ("model.scan=True", "model.moe.gating=TopK(k=1,normalize=False,bias=LossFree())")
    made = random_logdir(tmp_path, overrides)
    theta, _ = read_theta(made)
    bias = np.arange(16.0).reshape(2, 8)  # [Y, E]
    theta.encoder.block.layer_00.feed_forward.gating.bias = bias
    first = np.ones([4, len(made.pairs), 8])
    for layer in range(4):
        first[layer, :, layer] = 9
    record(first, first, made.pairs, made.task.moe_layers).save(made.routing_path)
    pruned, smaller = Pruning(share=0.9).apply(made, theta)
    assert not pruned.params.model.scan
    gates = theta.encoder.block.layer_00.feed_forward.gate  # [Y, M, E]
    for y in range(2):
        layer = smaller.encoder[f"layer_{y:02}"].feed_forward
        np.testing.assert_array_equal(layer.gate, gates[y][:, [y]])
        np.testing.assert_array_equal(layer.gating.bias, bias[y, [y]])


@pytest.mark.parametrize(
    ("overrides", "pruning", "message"),
    [
        ({}, Pruning(share=0.5, languages=("xx",)), "--languages=xx: "),
        ({"moe": None}, Pruning(share=0.5), "without experts; drop --prune"),
        ({"gating": TopK(limit=NodeLimited())}, Pruning(share=0.5), "NodeLimited.* drop --prune"),
        ({"gating": TopK(k=3)}, Pruning(share=0.75), r"2 experts in .* Pass a smaller --prune"),
    ],
)
def test_what_cannot_be_pruned(model_dir, overrides, pruning, message):
    model = model_dir.params.model
    moe = overrides["moe"] if "moe" in overrides else dataclasses.replace(model.moe, **overrides)
    params = dataclasses.replace(model_dir.params, model=dataclasses.replace(model, moe=moe))
    with pytest.raises(ValueError, match=message):
        pruning.check(dataclasses.replace(model_dir, params=params))


def test_no_record_is_said_with_its_cure(model_dir, tmp_path):
    with pytest.raises(ValueError, match=r"routing\.npz .* evaluation on dev writes"):
        Pruning(share=0.5).check(dataclasses.replace(model_dir, path=tmp_path))


def test_languages_name_pairs(model_dir):
    def pairs(*languages):
        return Pruning(share=0.5, languages=languages).pairs(model_dir)

    assert pairs() == model_dir.pairs == pairs("en")
    assert pairs("qna") == pairs("qna-en") == ("qna-en",)


def test_pairs_of_training_are_kept(model_dir, tmp_path):
    trained = ("qna-en", "qta-en", "qto-en")
    inputs = dataclasses.replace(model_dir.params.input, pairs=trained)
    staged = dataclasses.replace(
        model_dir, params=dataclasses.replace(model_dir.params, input=inputs)
    )
    assert Pruning(share=0.5).pairs(staged) == trained
    pruned, _, _ = read_model(staged, None, Pruning(share=0.5, languages=("qto",)))
    assert pruned.params.input.pairs == ("qto-en",)
    exported = dataclasses.replace(pruned, path=tmp_path)
    assert exported.scored_pairs == model_dir.pairs
    exported.weights_path.touch()
    assert exported.scored_pairs == ("qto-en",)
    assert Pruning(share=0.5, languages=("qto",)).narrow(staged).some_languages == ("qto", "en")
