import numpy as np

from lingvo_moe.data.lengths import (
    Amount,
    add_tables,
    amount,
    count_ratios,
    length_ratio,
    tabulate,
)


def test_amounts_of_two_blocks():
    blocks = [np.array([[3, 16], [17, 5]]), np.array([[16, 1], [40, 20]]), np.empty((0, 2), int)]
    table = add_tables(map(tabulate, blocks))
    # (3, 16) and (16, 1) are in the cell (16, 16).
    assert table.tolist() == [[16, 16, 2, 19, 17], [32, 16, 1, 17, 5], [48, 32, 1, 40, 20]]
    assert amount(table, 16, 16) == Amount(2, 19, 17)
    assert amount(table, 48, 16) == Amount(3, 36, 22)
    assert amount(table, 10**9, 10**9) == Amount(4, 76, 42)
    assert amount(add_tables([]), 16, 16) == Amount(0, 0, 0)


def test_the_ratio_that_almost_all_lines_have_at_most():
    # 998 lines of 1.0, one of 2.13 and one of 9: 999 of 1,000 have at most 2.5, in steps of 0.5.
    lines = np.array([[10, 10]] * 998 + [[100, 213], [10, 90]])
    counts = sum(count_ratios(block) for block in np.split(lines, [3, 500]))
    assert length_ratio(counts) == 2.5
    # Two misaligned lines of 1,000 are too many to leave out, and the largest ratio is 4.
    assert length_ratio(count_ratios(np.array([[10, 10]] * 998 + [[10, 90]] * 2))) == 4.0
    assert length_ratio(count_ratios(np.array([[10, 5]] * 9))) == 1.5
