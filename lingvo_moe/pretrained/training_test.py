"""Imported models are trained further on data that are prepared for them."""

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.jobs.evaluation import record_routing
from lingvo_moe.nn.special_tokens import EOS
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.serving.formats.hugging_face import HuggingFace
from lingvo_moe.serving.formats.safetensors import Safetensors
from lingvo_moe.serving.prune import Pruning
from lingvo_moe.serving.report import compare
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.testing import hugging_face as testing

LINES = {
    "train": [f"the quick brown fox {word}" for word in ["jumps", "over", "the", "lazy", "dog"]],
    "dev": ["pack my box", "with liquor jugs"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(the imported model, data with tags on both sides, the same without)."""
    directory = tmp_path_factory.mktemp("world")
    imported = import_model(testing.FIXTURES / "nllb_moe", directory / "imported")
    for split, lines in LINES.items():
        (directory / "corpus" / split).mkdir(parents=True)
        for language in ("eng_Latn", "fra_Latn"):
            path = directory / "corpus" / split / f"eng_Latn-fra_Latn.{language}"
            path.write_text("".join(f"{line}, {language}\n" for line in lines))
    options = {"extend": str(imported.path), "new_pieces": 0, "joint_vocab": True}
    made = [
        prepare(
            directory / "corpus",
            directory / f"data{both}",
            PrepareParams(tags_on_both_sides=both, **options),
        )
        for both in (True, False)
    ]
    return imported, *made


def test_both_sides_begin_with_the_tag_of_their_language(world):
    imported, data, _ = world
    (example, *_) = data.examples("dev", "eng_Latn-fra_Latn")
    vocabulary = imported.vocabulary("source")
    (pieces,) = vocabulary.encode([example.source_text])
    assert example.source.tolist() == [vocabulary.tag("eng_Latn"), *pieces, EOS]
    (pieces,) = vocabulary.encode([example.target_text])
    assert example.target.tolist() == [vocabulary.tag("fra_Latn"), *pieces, EOS]
    assert data.source_vocabulary == vocabulary
    assert type(data).load(data.directory).tags_on_both_sides


def test_data_of_the_other_kind_are_refused(world, tmp_path):
    imported, data, other = world
    with pytest.raises(ValueError, match="again with --tags_on_both_sides"):
        ModelDir.for_training(tmp_path / "a", "nllb", (), other, imported.params)
    with pytest.raises(ValueError, match="again with --notags_on_both_sides"):
        ModelDir.for_training(tmp_path / "b", "tiny.MoE", ("target_vocab_size=1536",), data)


@pytest.mark.slow
def test_training_goes_on_from_the_imported_weights(world, tmp_path):
    imported, data, _ = world
    params = lm.evolve(imported.params, "train.max_steps", 3)
    params = lm.evolve(lm.evolve(params, "input.batch_size", 4), "model.dropout_rate", 0.0)
    params = lm.evolve(params, "init.logdir", str(imported.path))
    lm.train(params, data, tmp_path / "logdir", name="nllb", report=lambda line: None)
    before, after = lm.load(imported.path), lm.load(tmp_path / "logdir")
    sources, targets = LINES["dev"], LINES["train"][:2]
    options = {"source_language": "eng_Latn"}
    scores = [
        sum(s.log_prob for s in model.score(sources, targets, "fra_Latn", **options))
        for model in (before, after)
    ]
    assert np.isfinite(scores).all()
    assert scores[0] != scores[1]
    assert abs(scores[0] - scores[1]) < 0.2 * abs(scores[0])  # not drawn anew


@pytest.mark.slow
def test_an_imported_model_is_evaluated_and_pruned_on_data_for_it(world, tmp_path):
    """Without training: it has no pairs and no record of routing of its own."""
    imported, data, other = world
    with pytest.raises(ValueError, match="again with --tags_on_both_sides"):
        imported.for_test_set(other)
    report = lm.evaluate(imported, data, output=tmp_path / "report", split="dev")
    (score,) = report.pairs
    assert (score.pair, score.test_examples) == ("eng_Latn-fra_Latn", 2)
    assert "source_use" in score.measures
    with pytest.raises(ValueError, match=r"so does lingvo-moe-experts --data=DATA"):
        Pruning(share=0.5).pairs(imported)
    record = record_routing(imported, data, Local)
    examples = data.examples("dev", "eng_Latn-fra_Latn")
    tokens = [sum(len(getattr(e, side)) for e in examples) for side in ("source", "target")]
    # Two experts of each token; the decoder reads the target's tag and writes EOS.
    assert record.pair_load.sum(axis=(1, 2)).tolist() == [2 * count for count in tokens]
    record.save(imported.routing_path)
    try:
        Safetensors().export(imported, tmp_path / "pruned", pruning=Pruning(share=0.5))
    finally:
        imported.routing_path.unlink()
    pruned = lm.load(tmp_path / "pruned")
    assert imported.params.model.moe.num_experts == 3
    assert pruned.params.model.moe.num_experts == 2
    assert pruned.languages == ["eng_Latn", "fra_Latn"]
    ((best,),) = pruned.translate(["pack my box"], "fra_Latn", source_language="eng_Latn")
    assert np.isfinite(best.score)


def test_text_for_evaluation_alone_is_enough_for_an_existing_vocabulary(world, tmp_path):
    imported, _, _ = world
    (tmp_path / "corpus" / "test").mkdir(parents=True)
    for language in ("eng_Latn", "fra_Latn"):
        (tmp_path / "corpus" / "test" / f"eng_Latn-fra_Latn.{language}").write_text("pack my box\n")
    options = {"joint_vocab": True, "tags_on_both_sides": True, "new_pieces": 0}
    with pytest.raises(ValueError, match="train has no text"):
        prepare(tmp_path / "corpus", tmp_path / "new", PrepareParams(**options))
    params = PrepareParams(extend=str(imported.path), **options)
    data = prepare(tmp_path / "corpus", tmp_path / "data", params)
    assert data.pair("eng_Latn-fra_Latn").examples == {"test": 1}
    model_dir, same = imported.for_test_set(data)
    assert (model_dir.pairs, same) == (("eng_Latn-fra_Latn",), data)


@pytest.mark.slow
def test_an_export_to_the_format_it_came_in_is_compared_with_the_model(world, tmp_path):
    _, data, _ = world  # whose model has values that an evaluation has fitted
    imported = import_model(testing.FIXTURES / "nllb_moe", tmp_path / "imported")
    HuggingFace().export(imported, tmp_path / "export")
    import_model(tmp_path / "export", tmp_path / "again")
    trained, exported = lm.load(imported.path), lm.load(tmp_path / "again")
    (score,) = compare(trained, exported, data, "dev", lambda line: None).pairs
    assert (score.pair, score.test_examples, score.delta_bleu) == ("eng_Latn-fra_Latn", 2, 0)
    languages = {"to": "fra_Latn", "source_language": "eng_Latn"}
    sentences = ["pack my box", "with liquor jugs"]
    assert trained.translate(sentences, **languages) == exported.translate(sentences, **languages)
