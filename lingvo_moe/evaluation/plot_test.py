"""Tests of the plot: the moving average by hand, and that every kind of report is drawn."""

import numpy as np
import pytest

from lingvo_moe.evaluation.plot import moving_average, write_plot
from lingvo_moe.evaluation.report_test import make_report, make_score


def test_moving_average_by_hand():
    # A window of three: itself and a neighbour on either side, where there is one.
    np.testing.assert_allclose(moving_average([0, 3, 6, 3], window=3), [1.5, 3, 4, 4.5])
    # An even window reaches one place further back: place 2 sees 0, 1, 2, 3 of a window of 4.
    np.testing.assert_allclose(moving_average([0, 1, 2, 3, 4], window=4)[2], 1.5)
    # Places without a value are left out, not taken for zero.
    np.testing.assert_allclose(moving_average([2, None, 4], window=3), [2, 3, 4])
    assert np.isnan(moving_average([None, None], window=2)).all()


def test_a_constant_stays_constant_to_its_ends():
    np.testing.assert_allclose(moving_average([7.0] * 25), 7.0)


@pytest.mark.parametrize("pairs", [1, 12, 100])
@pytest.mark.parametrize("baseline", [None, 20.0])
def test_draws_a_png_of_few_and_many_pairs(tmp_path, pairs, baseline):
    scores = [make_score(f"x{i}-en", 1000 - i, 30.0 + i, baseline) for i in range(pairs)]
    write_plot([make_report(*scores)], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_system_without_baseline_may_stand_beside_one_with(tmp_path):
    with_baseline = make_report(make_score("a-en", 9, 30.0, 20.0), make_score("b-en", 0, 9.0, 3.0))
    without = make_report(make_score("a-en", 9, 30.0))
    write_plot([without, with_baseline], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_every_system_is_drawn_even_with_colours_used_up(tmp_path):
    # All lie on one another: what a fifth system, of a colour used before, adds is its name.
    report = make_report(make_score("a-en", 9, 30.0, 20.0))
    write_plot([report] * 4, tmp_path / "four.png")
    write_plot([report] * 5, tmp_path / "five.png")
    assert (tmp_path / "four.png").read_bytes() != (tmp_path / "five.png").read_bytes()
