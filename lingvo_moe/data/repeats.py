"""Finds repeated lines by 128-bit hashes; one range of hashes at a time, to bound memory."""

import hashlib
from collections.abc import Iterable

import numpy as np

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("line", "<u4")])


def hashes(texts: Iterable[bytes]) -> np.ndarray:
    """The 128-bit hash of each text, as S16: 16 bytes."""
    digests = (hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "S16")


def sorted_keys(texts: Iterable[bytes], lines: np.ndarray) -> np.ndarray:
    """The hash and the number of each line of a block, sorted by hash, then by number.

    Args:
        texts: the bytes of the lines.
        lines: their numbers in the block, ascending.
    """
    numbers = hashes(texts).view("<u8").reshape(-1, 2)
    keys = np.empty(len(lines), _KEY)
    keys["high"], keys["low"], keys["line"] = numbers[:, 0], numbers[:, 1], lines
    return keys[np.lexsort((keys["low"], keys["high"]))]


def repeated_lines(
    blocks: Iterable[np.ndarray], starts: np.ndarray, part: int, parts: int
) -> np.ndarray:
    """The numbers of the lines that repeat an earlier line: int64, ascending.

    Args:
        blocks: `sorted_keys` of each block; only a range of each is read.
        starts: the number of the first line of each block.
        part, parts: the number of the range of hashes, from 0, and the number of ranges.
    """
    bounds = np.array([i * 2**64 // parts for i in range(1, parts)], np.uint64)
    highs, lows, lines = (np.empty(0, kind) for kind in (np.uint64, np.uint64, np.int64))
    columns: list[tuple[np.ndarray, ...]] = [(highs, lows, lines)]
    for keys, start in zip(blocks, starts, strict=True):
        ends = [0, *np.searchsorted(keys["high"], bounds), len(keys)]
        chosen = keys[ends[part] : ends[part + 1]]
        # Copies, so that no more than one block is mapped.
        high_low = np.array(chosen["high"]), np.array(chosen["low"])
        columns.append((*high_low, chosen["line"] + np.int64(start)))
    highs, lows, lines = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((lows, highs))  # stable: equal keys stay in the order of lines
    highs, lows, lines = highs[order], lows[order], lines[order]
    same = (highs[1:] == highs[:-1]) & (lows[1:] == lows[:-1])
    return np.sort(lines[1:][same])
