"""The floor on a small dataset."""

import pytest

from lingvo_moe.evaluation.nearest import nearest
from lingvo_moe.jobs import floor
from lingvo_moe.jobs.floor import nearest_targets, train_texts
from lingvo_moe.testing.tiny_world import CORPUS, dataset, without


def _lines(side):
    return (CORPUS / "train" / f"qna-en.{side}").read_text("utf-8").splitlines()


@pytest.mark.parametrize("block", [7, 10_000])
def test_targets_are_those_of_the_most_similar_training_sentences(block, monkeypatch):
    monkeypatch.setattr(floor, "_BLOCK", block)
    examples = dataset().examples("train", "qna-en")
    sources, targets = (train_texts(dataset(), examples, side) for side in ("source", "target"))
    assert {*zip(sources, targets, strict=True)} <= {*zip(_lines("qna"), _lines("en"), strict=True)}
    tests = [example.source_text for example in dataset().examples("test", "qna-en")]
    expected = [targets[i] for i in nearest([sources], tests)]
    assert len(set(expected)) > 10
    assert nearest_targets(dataset(), "test", "qna-en") == expected


def test_a_pair_without_training_text_has_none():
    assert nearest_targets(without("train"), "test", "qna-en") is None
