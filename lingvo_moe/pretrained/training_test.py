"""Imported models are trained further on data that are prepared for them."""

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.core.tokens import EOS
from lingvo_moe.data.prepare import PrepareParams, prepare
from lingvo_moe.pretrained.hugging_face import import_model
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
