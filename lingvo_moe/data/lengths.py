"""Tables of the lengths of lines: how many lines and tokens of a split fit rows of any length.

A table is int64 [cells, 5]: source and target length, rounded up to multiples of UNIT; the number
of lines with these lengths; their source tokens; their target tokens.

Counts of ratios are int64 [bins]: how many lines have a target length of at most (bin / 2) source
lengths, and more than one bin before; the last bin has also all larger ratios.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

UNIT = 16  # tokens
LONGEST = 384  # tokens of a side: with 256 a language of ebible would lose 7 % of its text
COLUMNS = 5
_RATIO_UNIT = 2  # bins of a ratio of 1; XLA compiles a search for each
_LEAST, _MOST = 1.5, 4.0  # a ratio that leaves room; misaligned lines have more


class Amount(NamedTuple):
    """A number of lines, and of their tokens with tags and EOS."""

    lines: int
    source_tokens: int
    target_tokens: int


def tabulate(lengths: np.ndarray) -> np.ndarray:
    """The table of lines with these lengths, [lines, 2]."""
    lengths = lengths.astype(np.int64)
    one = np.ones((len(lengths), 1), np.int64)
    return add_tables([np.concatenate([-(-lengths // UNIT) * UNIT, one, lengths], axis=1)])


def add_tables(tables: Iterable[np.ndarray]) -> np.ndarray:
    """The table of the lines of all tables together, in order of the lengths."""
    rows = np.concatenate([np.empty((0, COLUMNS), np.int64), *tables])
    cells, numbers = np.unique(rows[:, :2], axis=0, return_inverse=True)
    sums = np.zeros((len(cells), COLUMNS - 2), np.int64)
    np.add.at(sums, numbers.ravel(), rows[:, 2:])
    return np.concatenate([cells, sums], axis=1)


def amount(table: np.ndarray, source_length: int, target_length: int) -> Amount:
    """The lines that fit a row; exact if both lengths are multiples of UNIT."""
    fits = (table[:, 0] <= source_length) & (table[:, 1] <= target_length)
    return Amount(*table[fits, 2:].sum(axis=0).tolist())


def count_ratios(lengths: np.ndarray) -> np.ndarray:
    """The counts of ratios of lines with these lengths, [lines, 2]."""
    source, target = lengths.astype(np.int64).T
    last = int(_MOST * _RATIO_UNIT)
    bins = -(-target * _RATIO_UNIT // np.maximum(source, 1))
    return np.bincount(np.minimum(bins, last), minlength=last + 1)


def length_ratio(counts: np.ndarray) -> float:
    """The ratio of lengths that 99.9 % of the lines have at most, rounded up: 1.5, 2.0 … 4.0."""
    enough = np.searchsorted(np.cumsum(counts) * 1000, 999 * counts.sum())
    return max(_LEAST, float(enough) / _RATIO_UNIT)
