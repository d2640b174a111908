"""Random permutations of any number of examples, computed without a table: keyed bijections.

A Feistel network permutes the numbers of b bits, where b is the smallest with 2^b >= n. A result of
n or more is permuted again until it is smaller (cycle walking; Black and Rogaway 2002, Ciphers with
Arbitrary Finite Domains). So the only state of a shuffled epoch is a position in it.
"""

import numpy as np

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_numbers(*numbers: np.ndarray | int) -> np.ndarray:
    """A hash of several numbers, uint64, elementwise (the finalizer of SplitMix64)."""
    hashed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for number in numbers:
            hashed = _mixed(hashed + _GOLDEN + _mixed(np.asarray(number).astype(np.uint64)))
    return hashed


def to_shares(hashes: np.ndarray) -> np.ndarray:
    """Maps uint64 hashes to float64 in [0, 1), uniformly."""
    return (hashes >> np.uint64(11)).astype(np.float64) / 2**53


def permuted(positions: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The number at each position (int64 [N], from 0) of a permutation of range(size), int64. Sizes
    are int64 [N], at most 2^52; keys, uint64 [N], choose the permutation."""
    numbers = positions.astype(np.uint64)
    limits, keys = sizes.astype(np.uint64), np.broadcast_to(keys, positions.shape)
    pending = np.arange(len(numbers))
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    while len(pending):
        found = _encrypted(numbers[pending], bits[pending], keys[pending])
        numbers[pending] = found
        pending = pending[found >= limits[pending]]
    return numbers.astype(np.int64)


def _encrypted(numbers, bits, keys):
    """A bijection of the numbers of `bits` bits."""
    one, low_bits = np.uint64(1), bits // np.uint64(2)
    masks = (one << low_bits) - one, (one << (bits - low_bits)) - one
    halves = [numbers & masks[0], numbers >> low_bits]
    with np.errstate(over="ignore"):
        for round_ in range(_ROUNDS):
            changed = round_ % 2
            keys = keys + _GOLDEN
            halves[changed] = halves[changed] ^ (
                _mixed(halves[1 - changed] ^ keys) & masks[changed]
            )
    return (halves[1] << low_bits) | halves[0]


def _mixed(numbers):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
