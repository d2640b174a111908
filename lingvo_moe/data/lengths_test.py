import numpy as np

from lingvo_moe.data.lengths import Amount, add_tables, amount, tabulate


def test_amounts_of_two_blocks():
    blocks = [np.array([[3, 16], [17, 5]]), np.array([[16, 1], [40, 20]]), np.empty((0, 2), int)]
    table = add_tables(map(tabulate, blocks))
    # (3, 16) and (16, 1) are in the cell (16, 16).
    assert table.tolist() == [[16, 16, 2, 19, 17], [32, 16, 1, 17, 5], [48, 32, 1, 40, 20]]
    assert amount(table, 16, 16) == Amount(2, 19, 17)
    assert amount(table, 48, 16) == Amount(3, 36, 22)
    assert amount(table, 10**9, 10**9) == Amount(4, 76, 42)
    assert amount(add_tables([]), 16, 16) == Amount(0, 0, 0)
