"""Tests of the pictures: what differs looks different, and all of it fits the page."""

import numpy as np
import pytest

from lingvo_moe.evaluation.experts_plot import draw_load, draw_similarity
from lingvo_moe.testing.pictures import ink, inked, pixels


def _languages(count):
    return [f"x{i}" for i in range(count)]


def _load(num_languages, num_experts):
    """The first half of the experts, rounded up, is chosen equally often, the others never."""
    shares = np.zeros((num_languages, num_experts))
    half = (num_experts + 1) // 2
    shares[:, :half] = 1 / half
    return draw_load(shares, _languages(num_languages), range(num_experts), "encoder/layer_01")


def _assert_fits_a_page(png):
    height, width, _ = pixels(png).shape
    assert 390 <= width <= 1088  # 68 rem, the page's width
    assert 200 <= height <= 1500


def _dark_quarters(png, dark, light):
    """[[bool, bool], [bool, bool]]: which quarters of the cells are dark; the others are light."""
    found = inked(png, dark)
    cells = found | inked(png, light, tolerance=20)  # white is not light
    # Cells are most of the picture; the bar of colours is to the right of them.
    down, across = (np.nonzero(cells.mean(axis=axis) > 0.4)[0] for axis in (1, 0))
    parts = [[np.ix_(rows, columns) for columns in _halves(across)] for rows in _halves(down)]
    shares = [[found[part][cells[part]].mean() for part in of] for of in parts]
    assert np.all(np.abs(np.array(shares) - 0.5) > 0.35), shares
    return [[share > 0.5 for share in row] for row in shares]


def _halves(indices):
    """The indices of the two halves, without a few at the edges."""
    edge = len(indices) // 10
    return [half[edge:-edge] for half in np.array_split(indices, 2)]


LIGHTEST, DARKEST = "#ffffd9", "#081d58"  # the ends of YlGnBu


@pytest.mark.parametrize(("languages", "experts"), [(4, 2), (100, 512)])
def test_loads_of_few_and_many(languages, experts):
    picture = _load(languages, experts)
    _assert_fits_a_page(picture)
    assert _dark_quarters(picture, DARKEST, LIGHTEST) == [[True, False], [True, False]]


def test_rows_are_languages_and_columns_are_experts():
    def picture(language, expert):
        shares = np.zeros((4, 8))
        shares[language, expert] = 1
        return pixels(draw_load(shares, _languages(4), range(8), "layer")).sum(axis=-1)

    first, last = picture(0, 0), picture(3, 7)
    darker, lighter = (np.argwhere(where).mean(axis=0) for where in (first < last, first > last))
    assert np.all(darker + 100 < lighter)  # the upper left corner and the lower right


def _has_gray(png):
    """The colour of what is unknown, #d9dee4, up to the palette's rounding."""
    return ink(png, "#d9dee4", tolerance=2)


def test_a_language_without_choices_is_a_gray_row():
    shares = np.full((4, 8), 1 / 8)
    without = _has_gray(draw_load(shares, _languages(4), range(8), "layer"))
    shares[1] = np.nan
    gray = _has_gray(draw_load(shares, _languages(4), range(8), "layer"))
    assert gray > without + 5000


def test_nothing_known_is_drawn_all_the_same():
    nothing = np.full((2, 2), np.nan)
    assert _has_gray(draw_load(nothing, ["a", "b"], [0, 1], "layer")) > 5000
    assert _has_gray(draw_similarity(nothing, ["a", "b"], [2], "side")) > 5000


def test_labels_are_text_not_mathematics():
    shares = np.full((2, 8), 1 / 8)

    def black(*labels):  # darker than any cell
        return ink(draw_load(shares, labels, range(8), "$\\bad$"), "#000000", tolerance=29)

    assert black("$a$", "b") > black("a", "b") + 15  # the dollars are drawn
    assert black("$\\bad", "b$_") > black("bad", "b") + 15  # as mathematics it would be an error


@pytest.mark.parametrize("count", [8, 100])
def test_similarity_of_few_and_many(count):
    """Two groups of languages: equal within a group, different between them."""
    group = np.arange(count) < count // 2
    similarity = np.where(group[:, None] == group, 1.0, 0.0)
    picture = draw_similarity(similarity, _languages(count), [count], "s")
    _assert_fits_a_page(picture)
    assert _dark_quarters(picture, DARKEST, LIGHTEST) == [[True, False], [False, True]]


def test_one_of_a_kind_is_drawn_in_gray():
    alone = np.full((1, 1), np.nan)
    picture = draw_similarity(alone, ["a"], [1], "s")
    _assert_fits_a_page(picture)
    assert _has_gray(picture) > 5000
