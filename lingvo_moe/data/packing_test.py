"""Tests of rows and of padded batches."""

import numpy as np
import pytest

from lingvo_moe.data.dataset import Example
from lingvo_moe.data.packing import Pool, Shape, Waiting, pack, padded


def _example(source, target):
    return Example(np.array(source, np.int32), np.array(target, np.int32))


def test_first_fit_by_hand():
    # Rows of 5 source and 4 target tokens. The second example does not fit beside the first (3 + 3
    # source tokens), the third does, the fourth fits no empty row. The fifth begins a batch: the
    # target sides have room for 0 and 1. BOS is 1, EOS is 2.
    examples = [
        (_example([4, 10, 2], [20, 2]), 7),
        (_example([4, 11, 2], [21, 22, 2]), 8),
        (_example([5, 2], [23, 2]), 9),
        (_example([5, 2], [2] * 5), 9),
        (_example([5, 2], [24, 2]), 9),
    ]
    batch, second = pack(examples, Shape(2, 5, 4))
    assert batch.source_ids.tolist() == [[4, 10, 2, 5, 2], [4, 11, 2, 0, 0]]
    assert batch.source_segment_ids.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]
    assert batch.target_ids.tolist() == [[20, 2, 23, 2], [21, 22, 2, 0]]
    assert batch.target_inputs.tolist() == [[1, 20, 1, 23], [1, 21, 22, 0]]
    assert batch.target_segment_ids.tolist() == [[1, 1, 2, 2], [1, 1, 1, 0]]
    assert batch.target_pair_ids.tolist() == [[7, 7, 9, 9], [8, 8, 8, 0]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert second.target_ids.tolist() == [[24, 2, 0, 0], [0, 0, 0, 0]]
    assert list(pack([], Shape(2, 5, 4))) == []


@pytest.mark.parametrize("stopped_after", [0, 1, 7])
def test_no_example_waits_forever(stopped_after):
    """A row of 4 begins with the oldest of 3; the others of length 4 or 3 never fit beside it.

    Lengths 2, 4, 3, 4, 3, …: beside the first example, of length 2, nothing fits, and it is the
    smallest of all. Each row takes one example, so example n is in row n.
    """
    lengths = [2, *[4, 3] * 20]

    def waiting(number):
        ids = [number] * lengths[number]
        return Waiting(_example(ids, ids), 0, (0, number))

    numbers = iter(range(len(lengths)))

    def pool():
        return Pool(lambda: waiting(next(numbers)), 3, (4, 4))

    one = pool()
    rows = one.fill(stopped_after)
    saved = one.state()
    one = pool()
    found = saved[saved[:, 1] >= 0]
    one.restore([waiting(number) for number in found[:, 1]], found[:, 2])
    rows += one.fill(10 - stopped_after)
    assert [[int(example.source[0]) for example, _ in row] for row in rows] == [
        [n] for n in range(10)
    ]


def test_padded_to_multiples_of_eight():
    ids, lengths = padded([[6] * 9, [7, 7]])
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [[6] * 9 + [0] * 7, [7, 7] + [0] * 14]
    assert lengths.tolist() == [9, 2]
