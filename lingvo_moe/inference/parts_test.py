import math

import pytest

from lingvo_moe.data.sentences import Part
from lingvo_moe.inference.parts import TranslatedPart, Translation, merge_hypotheses


def _length(length, parts):
    del parts
    return length


def _part(text, score, length):
    return TranslatedPart(Translation(text, score), length)


def test_hypotheses_of_parts_are_joined_by_log_p():
    """Scores are log P / length: "long" has log P -1 and "short" -2."""
    first = [_part("short", -2.0, 1), _part("long", -0.1, 10)]
    second = [_part("stop", -3.0, 1), _part("end", -1.0, 1), _part("", -0.5, 0)]  # it did not end
    parts = [Part("a", 1, " "), Part("b", 1, "")]
    best, other = merge_hypotheses([first, second], parts, _length)
    assert (best.text, other.text) == ("long end", "short stop")
    assert best.score == pytest.approx((-1.0 - 1.0) / 11)
    assert other.score == pytest.approx((-2.0 - 3.0) / 2)


def test_a_text_of_which_no_hypothesis_of_a_part_ended_is_empty():
    parts = [Part("a", 1, " "), Part("b", 1, "")]
    found = [[_part("x", -1.0, 1)], [_part("", -1.0, 0)]]
    assert merge_hypotheses(found, parts, _length) == [Translation("", -math.inf)]
