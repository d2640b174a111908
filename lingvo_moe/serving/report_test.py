import types

import pytest

from lingvo_moe.inference.translator import Translation
from lingvo_moe.serving.report import compare
from lingvo_moe.testing import tiny_world

PAIR = "qna-en"
REFERENCES = [e.target_text for e in tiny_world.dataset().examples("test", PAIR)]


def model(texts, pair=PAIR):
    """Gives these texts, whatever it is to translate."""

    def translate(sentences, *_, **__):
        return [[Translation(text, 0.0)] for text in texts[: len(sentences)]]

    return types.SimpleNamespace(pairs=(pair,), translator=lambda: translate)


def test_the_trained_model_is_the_baseline():
    wrong = model(["nothing of it"] * len(REFERENCES))
    report = compare(model(REFERENCES), wrong, tiny_world.dataset(), "test", print)
    (score,) = report.pairs
    assert (score.pair, score.test_examples) == (PAIR, len(REFERENCES))
    assert (score.bleu, score.delta_bleu) == (0, pytest.approx(-100))


def test_an_export_of_pairs_without_lines_is_refused():
    other = model([], "xx-en")
    with pytest.raises(ValueError, match="no test lines"):
        compare(other, other, tiny_world.dataset(), "test", print)
