"""The measured columns of a report."""

import pytest

from lingvo_moe.evaluation.report_columns import length_warnings, measured, shown
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.testing.reports import make_score


def of(hypotheses, references, **given):
    sources = ["x"] * len(references)
    return PairOutput(
        pair="a-b",
        train_examples=1,
        sources=sources,
        hypotheses=hypotheses,
        references=references,
        **given,
    )


def test_values_by_hand():
    """6 characters for 12, one of two translations is empty, 2 words for 4: BP = e^(1 - 4/2)."""
    values = measured(of(["ab abc", ""], ["abcd abcd", "a b"], measures={"left_out": 0.5}), "13a")
    assert values == {
        "length_ratio": 0.5,
        "brevity_penalty": pytest.approx(0.36788, abs=1e-5),
        "empty": 0.5,
        "copied": 0.0,
        "left_out": 0.5,
    }


def test_copies_of_the_source_are_counted_where_the_reference_is_none():
    output = of(["x", "x", "y", "x"], ["y", "x", "x", "xx"])
    assert measured(output, "13a")["copied"] == 0.5


def test_an_empty_translation_of_an_empty_source_is_right():
    output = PairOutput(
        pair="a-b", train_examples=1, sources=["", "x"], hypotheses=["", "y"], references=["", "y"]
    )
    assert measured(output, "13a")["empty"] == 0


def test_columns_that_say_nothing_are_hidden():
    plain = measured(of(["a"], ["a"]), "13a")
    one = make_score("a-b", 9, 1.5, measures=plain)
    assert [column.name for column in shown([one])] == ["length"]
    other = make_score("a-b", 9, 1.5, measures=plain | {"empty": 0.1})
    assert [column.name for column in shown([one, other])] == ["length", "empty %"]
    assert [column.cell(other) for column in shown([other])] == ["1.00", "10.0"]


def test_warnings_of_lengths():
    assert length_warnings({"a-b": 0.8, "b-a": 1.25}) == []
    (line,) = length_warnings({"a-b": 0.79, "b-a": 1.0, "c-a": 1.26})
    assert "2 of 3 (a-b 0.79, c-a 1.26)" in line
