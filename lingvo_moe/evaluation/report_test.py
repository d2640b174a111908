"""Tests of the report: order, averages by hand, JSON, table."""

import json

import pytest

from lingvo_moe.evaluation.report import (
    format_table,
    load_report,
    pairs_table,
    save_report,
    shown_averages,
)
from lingvo_moe.testing.reports import SIX, make_report, make_score


def test_averages_by_hand():
    averages = SIX.averages
    # e-en has no baseline; all means of its groups are over the other pairs.
    assert (averages["all"].pairs, averages["all"].of) == (5, 6)
    assert averages["all"].bleu == pytest.approx((40 + 32 + 30 + 22 + 8) / 5)
    assert averages["all"].chrf == pytest.approx(averages["all"].bleu + 10)
    assert averages["all"].baseline_bleu == pytest.approx((41 + 26 + 20 + 10 + 2) / 5)
    assert averages["all"].delta_bleu == pytest.approx((-1 + 6 + 10 + 12 + 6) / 5)
    assert averages["high"].delta_bleu == pytest.approx((-1 + 6) / 2)
    assert averages["mid"].delta_bleu == pytest.approx((10 + 12) / 2)
    assert averages["low"].bleu == pytest.approx(8)
    assert averages["low"].delta_bleu == pytest.approx(6)
    assert (averages["reliable"].pairs, averages["reliable"].of) == (4, 5)
    assert averages["reliable"].bleu == pytest.approx((40 + 32 + 30 + 22) / 4)


@pytest.mark.parametrize(
    ("pairs", "thirds"),
    [(1, (0, 1, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (4, (1, 2, 1)), (12, (4, 4, 4))],
)
def test_thirds_share_out_every_pair(pairs, thirds):
    report = make_report(*(make_score(f"x{i}-en", 100 - i, 1.0) for i in range(pairs)))
    assert tuple(report.averages[k].pairs for k in ("high", "mid", "low")) == thirds
    assert report.averages["all"].baseline_bleu is None
    assert all(average.of for average in shown_averages(report).values())


def test_json_has_the_documented_keys_and_null_without_baseline(tmp_path):
    save_report(SIX, tmp_path)
    contents = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert {"model", "checkpoint_step", "split", "pairs", "averages"} <= contents.keys()
    required = "pair train_examples test_examples bleu baseline_bleu delta_bleu p_value chrf"
    assert {*required.split(), "signature"} <= contents["pairs"][0].keys()
    by_pair = {score["pair"]: score for score in contents["pairs"]}
    assert by_pair["c-en"]["delta_bleu"] == 10
    assert [by_pair["e-en"][k] for k in ("baseline_bleu", "delta_bleu", "p_value")] == [None] * 3
    assert contents["averages"]["high"]["delta_bleu"] == 2.5


def test_what_is_saved_is_loaded(tmp_path):
    report = make_report(make_score("a-en", 9, 1.5))
    save_report(report, tmp_path)
    assert load_report(tmp_path, split="test") == report


CHANGES = [
    ('"bleu": 1.5', '"bleu": NaN'),
    ('"bleu": 1.5', '"bleu": "1.5"'),
    ('"p_value": null', '"p_value": 2'),
    ('"pair": "a-en"', '"pair": "../../a-en"'),
    ('"model": "tiny.MoE"', '"model": null'),
]


def test_no_report_foreign_report_and_other_split_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no report"):
        load_report(tmp_path)
    save_report(make_report(make_score("a-en", 9, 1.5)), tmp_path)
    with pytest.raises(ValueError, match="'dev'"):
        load_report(tmp_path, split="dev")
    saved = (tmp_path / "report.json").read_text()
    bad = ["", "[]", *(saved.replace(*change) for change in CHANGES)]
    assert saved not in bad
    for text in bad:
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(ValueError, match="lingvo-moe-evaluate"):
            load_report(tmp_path)


def test_table():
    assert format_table(SIX).splitlines() == [
        "tiny.MoE, step 500, test, against tiny.Bilingual",
        "pair               train  test  BLEU  baseline  ΔBLEU       p  chrF++",
        "---------------------------------------------------------------------",
        "a-en               9,000   100  40.0      41.0   -1.0   0.400    50.0",
        "b-en                 700   100  32.0      26.0   +6.0   0.200    42.0",
        "c-en                 700   100  30.0      20.0  +10.0  0.010*    40.0",
        "d-en                 300   100  22.0      10.0  +12.0  0.040*    32.0",
        "e-en                  50   100  12.0         –      –       –    22.0",
        "f-en                  10   12?   8.0       2.0   +6.0   0.001    18.0",
        "---------------------------------------------------------------------",
        "all (5 of 6)                    26.4      19.8   +6.6       –    36.4",
        "high (2)                        36.0      33.5   +2.5       –    46.0",
        "mid (2)                         26.0      15.0  +11.0       –    36.0",
        "low (1 of 2)                     8.0       2.0   +6.0       –    18.0",
        "reliable (4 of 5)               31.0      24.2   +6.8       –    41.0",
        "* p < 0.05, paired bootstrap test",
        "? too few test lines for a reliable score",
    ]


def test_floor_and_models_are_columns_where_they_are_known(tmp_path):
    one = make_score("a-en", 9, 12.0, measures={"floor": 10.0}, model="tiny.A")
    two = make_score("b-en", 8, 14.0, measures={"floor": 11.0}, model="tiny.B")
    report = make_report(one, two)
    lines = format_table(report).splitlines()
    assert [line.split()[-2:] for line in (lines[1], *lines[3:5])] == [
        ["floor", "model"],
        ["10.0", "tiny.A"],
        ["11.0", "tiny.B"],
    ]
    assert lines[6].split() == ["all", "(2)", "13.0", "–", "–", "–", "23.0", "10.5"]
    assert lines[-1] == "floor: BLEU of the target of the most similar training sentence"
    save_report(report, tmp_path)
    assert load_report(tmp_path) == report


def test_many_to_many_by_hand(tmp_path):
    """a-en and en-a are trained, a-b and b-a are not; on a-b half of the lines are not in b."""
    scores = [
        make_score("a-en", 900, 40.0, 30.0),
        make_score("en-a", 900, 20.0, 10.0),
        make_score("a-b", 0, 5.0, measures={"off_target": 0.5, "references_off_target": 0.02}),
        make_score("b-a", 0, 7.0, measures={"off_target": 0.25, "references_off_target": 0.0}),
    ]
    report = make_report(*scores)
    zero_shot = report.averages["zero-shot"]
    assert (zero_shot.of, zero_shot.bleu, zero_shot.measures["off_target"]) == (2, 6, 0.375)
    assert [report.averages[name].of for name in ("high", "mid", "low")] == [1, 0, 1]
    lines = [line.split() for line in format_table(report).splitlines()]
    assert ["zero-shot", "(2)", "6.0", "–", "–", "–", "16.0", "37.5", "1.0"] in lines
    assert "° zero-shot: a pair without training data" in format_table(report)
    save_report(report, tmp_path)
    assert load_report(tmp_path) == report


def test_pairs_with_an_unknown_number_of_lines_are_not_zero_shot(tmp_path):
    """And in no third; a number of lines may have more than 32 bits."""
    sizes = {"a-en": 5 * 2**31, "b-en": 0, "c-en": None}
    report = make_report(*(make_score(pair, size, 30.0) for pair, size in sizes.items()))
    assert [row[1] for row in pairs_table(report).rows] == ["10,737,418,240", "0°", "–"]
    of = {name: average.of for name, average in report.averages.items()}
    assert (of["all"], of["high"], of["mid"], of["low"], of["zero-shot"]) == (3, 0, 1, 0, 1)
    save_report(report, tmp_path)
    assert load_report(tmp_path) == report
