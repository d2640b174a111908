"""Each part equals that part of the whole, and the whole is what NumPy makes of the stored one."""

import numpy as np
import pytest

from lingvo_moe.nn.layer import Uniform, WeightSpec
from lingvo_moe.training.lazy import copies, drawn, from_rows, layer_of, permuted, stack

STORED = np.random.default_rng(1).random((5, 4, 3), np.float32)
OTHER = -np.random.default_rng(2).random((6, 4, 3), np.float32)
PARENTS = [(0,), (1,), (4,), (), (0, 2, 3), (1,)]

CASES = {
    "permuted": (permuted(STORED, np.array([4, 0, 0])), STORED[[4, 0, 0]]),
    "rows": (
        from_rows(STORED, PARENTS, OTHER),
        np.stack([*STORED[[0, 1, 4]], OTHER[3], STORED[[0, 2, 3]].mean(axis=0), STORED[1]]),
    ),
    "copies": (copies(STORED, 1, 2), np.stack([STORED, STORED], axis=1)),
    "slice": (layer_of(STORED, 2), STORED[2]),
    "stacked": (stack([STORED, layer_of(OTHER[None], 0)[:5]]), np.stack([STORED, OTHER[:5]])),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_and_whole(name):
    lazy, expected = CASES[name]
    assert lazy.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(lazy), expected)
    rng = np.random.default_rng(4)
    for _ in range(20):
        starts = [int(rng.integers(0, size)) for size in lazy.shape]
        ends = map(lambda start, size: int(rng.integers(start, size)) + 1, starts, lazy.shape)
        index = tuple(map(slice, starts, ends))
        np.testing.assert_array_equal(lazy[index], expected[index])
    np.testing.assert_array_equal(lazy[0:1], expected[0:1])


def test_rows_that_stay_are_read_alone():
    class Watched:
        shape, read = STORED.shape, []

        def __getitem__(self, index):
            self.read.append(index)
            return STORED[index]

    rows = from_rows(Watched(), PARENTS, OTHER)
    np.testing.assert_array_equal(rows[0:2, 1:3], STORED[0:2, 1:3])
    assert Watched.read == [(slice(0, 2), slice(1, 3), slice(None))]


def test_drawn_parts_are_those_of_the_whole():
    spec = WeightSpec((6, 4), Uniform(1.0), "VM")
    first, second = drawn("a/b", spec, 1), drawn("a/b", spec, 2)
    np.testing.assert_array_equal(first[2:4, 1:], np.asarray(first)[2:4, 1:])
    assert not np.array_equal(first, second)
