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

    return types.SimpleNamespace(pairs=(pair,), translate=translate)


def test_a_row_for_each_pair_and_the_mean():
    wrong = model(["nothing of it"] * len(REFERENCES))
    table = compare(model(REFERENCES), wrong, tiny_world.dataset(), "test", print)
    lines = str(len(REFERENCES))
    assert table.rows == [(PAIR, lines, "100.00", "0.00", "-100.00")]
    assert table.more_rows == [("mean", lines, "100.00", "0.00", "-100.00")]


def test_an_export_of_pairs_without_lines_is_refused():
    other = model([], "xx-en")
    with pytest.raises(ValueError, match="no test lines"):
        compare(other, other, tiny_world.dataset(), "test", print)
