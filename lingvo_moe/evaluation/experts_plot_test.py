"""Tests of the pictures: what differs looks different, and all of it fits the page."""

import numpy as np
import pytest

from lingvo_moe.evaluation.experts_plot import draw_load
from lingvo_moe.testing.pictures import ink, pixels


def _languages(count):
    return [f"x{i}" for i in range(count)]


def _assert_fits_a_page(png):
    height, width, _ = pixels(png).shape
    assert 390 <= width <= 1088  # 68 rem, the page's width
    assert 200 <= height <= 1500


@pytest.mark.parametrize(("languages", "experts"), [(1, 1), (4, 2), (100, 512)])
def test_few_and_many_fit_a_page(languages, experts):
    shares = np.full((languages, experts), 1 / experts)
    _assert_fits_a_page(draw_load(shares, _languages(languages), range(experts), "layer"))


def test_rows_are_languages_and_columns_are_experts():
    def picture(language, expert):
        shares = np.zeros((4, 8))
        shares[language, expert] = 1
        return pixels(draw_load(shares, _languages(4), range(8), "layer")).sum(axis=-1)

    first, last = picture(0, 0), picture(3, 7)
    darker, lighter = (np.argwhere(where).mean(axis=0) for where in (first < last, first > last))
    assert np.all(darker + 100 < lighter)  # the upper left corner and the lower right


def test_what_is_unknown_is_grey():
    shares = np.full((4, 8), 1 / 8)
    without = ink(draw_load(shares, _languages(4), range(8), "layer"), "#d9dee4", tolerance=2)
    shares[1] = np.nan
    gray = ink(draw_load(shares, _languages(4), range(8), "layer"), "#d9dee4", tolerance=2)
    assert gray > without + 5000
