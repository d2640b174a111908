import itertools

import numpy as np
import pytest

from lingvo_moe.data.shuffle import hash_numbers, permuted


def _order(size, *key):
    positions = np.arange(size)
    return permuted(positions, np.full(size, size), hash_numbers(*key))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 64, 65, 1000, 100_000])
def test_every_number_once(size):
    orders = [_order(size, seed) for seed in range(3)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(size))
    if size >= 64:
        assert all(np.mean(a == b) < 0.1 for a, b in itertools.combinations(orders, 2))


def test_permutations_of_several_sizes_at_once():
    sizes = np.array([5, 1000, 5, 10**12])
    mixed = permuted(np.array([3, 7, 4, 8]), sizes, hash_numbers(1, np.array([1, 2, 1, 3])))
    assert mixed[[0, 2]].tolist() == _order(5, 1, 1)[[3, 4]].tolist()
    assert mixed[1] == _order(1000, 1, 2)[7]
    assert 0 <= mixed[3] < 10**12


def test_orders_look_random():
    """Positions of a number over many keys are even: chi-square of 9 degrees, p = 0.001: 27.9."""
    keys = np.repeat(hash_numbers(np.arange(2000)), 10)
    found = permuted(np.tile(np.arange(10), 2000), np.full(20_000, 10), keys).reshape(2000, 10)
    counts = np.bincount((found == 3).argmax(axis=1), minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 27.9
    # Neighbours are apart: |x - y| of random numbers is a third of the range on average.
    order = _order(100_000, 7)
    assert np.abs(np.diff(order)).mean() / 100_000 == pytest.approx(1 / 3, abs=0.01)
