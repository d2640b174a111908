"""Tests of the page: well formed, self-contained, escaped."""

import base64

import pytest

from lingvo_moe.evaluation.report import format_model, page_parts
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.reporting.page import document
from lingvo_moe.testing.pages import parse_page
from lingvo_moe.testing.reports import make_report, make_score

PNG = b"\x89PNG\r\n\x1a\nnot much of a picture"


@pytest.fixture
def page():
    report = make_report(
        make_score("a-en", 9000, 40.0, 41.0, 0.4),
        make_score("b-en", 700, 32.0, 32.0, 1.0),
        make_score("c-en", 20, 30.0, 20.0, 0.01, test_examples=30),
        model="my<model>",
        baseline_model="base&line",
    )
    outputs = [
        PairOutput(
            pair=score.pair,
            train_examples=score.train_examples,
            sources=["<script>alert(1)</script>"] * 4,
            hypotheses=["ours & <b>more</b>"] * 4,
            references=['the "reference"'] * 4,
        )
        for score in report.pairs
    ]
    parts_of_page = page_parts(
        report, outputs, {"a-en": ["theirs <i>"] * 4}, PNG, {"Command": "run <it>"}
    )
    return document(format_model(report), parts_of_page)


def test_is_well_formed_and_needs_no_other_file(page):
    checker = parse_page(page)
    assert "script" not in checker.tags
    (link,) = checker.links
    assert base64.b64decode(link.removeprefix("data:image/png;base64,")) == PNG


def test_texts_are_escaped_and_come_out_whole(page):
    cells = parse_page(page).cells
    assert "my<model>, step 500" in cells
    assert cells.count("<script>alert(1)</script>") == 9  # three lines of three pairs
    assert cells.count("ours & <b>more</b>") == 9
    assert cells.count("theirs <i>") == 3  # only a-en has the baseline's translations
    assert any("against base&line" in cell for cell in cells)
    assert "run <it>" in cells


def test_shows_scores_signatures_and_colours(page):
    cells = parse_page(page).cells
    assert {"9,000", "0.010*", "+10.0", "nrefs:1", "nw:2"} <= set(cells)
    assert '<td class="worse">-1.0</td>' in page
    assert '<td class="better">+10.0</td>' in page
    assert "<td>+0.0</td>" in page
