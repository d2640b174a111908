"""Tests of the plot: the moving average by hand, and that every kind of report is drawn."""

import numpy as np

from lingvo_moe.evaluation.plot import draw_plot, moving_average
from lingvo_moe.reporting.figure import COLORS
from lingvo_moe.testing.pictures import ink, inked, pixels
from lingvo_moe.testing.reports import make_report, make_score


def test_moving_average_by_hand():
    # A window of three: itself and a neighbour on either side, where there is one.
    np.testing.assert_allclose(moving_average([0, 3, 6, 3], window=3), [1.5, 3, 4, 4.5])
    # An even window reaches one place further back: place 2 sees 0, 1, 2, 3 of a window of 4.
    np.testing.assert_allclose(moving_average([0, 1, 2, 3, 4], window=4)[2], 1.5)
    # Places without a value are left out, not taken for zero.
    np.testing.assert_allclose(moving_average([2, None, 4], window=3), [2, 3, 4])
    assert np.isnan(moving_average([None, None], window=2)).all()


def test_few_and_many_pairs_are_drawn():
    def report(pairs):
        return make_report(
            *(make_score(f"x{i}-en", 1000 - i, 30.0 + i, 20.0) for i in range(pairs))
        )

    one, few, many = (draw_plot(report(pairs)) for pairs in (1, 12, 40))
    assert pixels(one).shape[1] < pixels(few).shape[1] < pixels(many).shape[1]
    assert ink(one, COLORS[0]) < ink(few, COLORS[0]) < ink(many, COLORS[0])


def test_the_better_is_drawn_higher():
    # Of twelve pairs the first six gain 10 and the others lose 10; rows count downwards.
    scores = [(f"x{i}-en", 1000 - i, 30.0, 20.0 if i < 6 else 40.0) for i in range(12)]
    drawn = inked(draw_plot(make_report(*(make_score(*score) for score in scores))), COLORS[0])
    first, second = (np.nonzero(half)[0].mean() for half in np.array_split(drawn, 2, axis=1))
    assert first < second - 100


def test_the_trend_ends_at_the_last_pair_with_a_value():
    scores = [(f"x{i}-en", 1000 - i, 30.0, 20.0 if i < 9 else None) for i in range(18)]
    drawn = inked(draw_plot(make_report(*(make_score(*score) for score in scores))), COLORS[0])
    left, right = np.array_split(drawn, 2, axis=1)
    assert left.any()
    assert not right.any()
