"""The training sentence most similar to a sentence.

Similarity is the cosine of TF-IDF vectors of character trigrams in lower case. The targets of these
sentences are copies from the training text. Their BLEU is a floor: a model with no more has learned
little.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

_N = 3  # characters; their code points, of 21 bits each, are one key of 64 bits
_SHIFTS = np.arange(_N, dtype=np.uint64) * np.uint64(21)


def nearest(blocks: Iterable[Sequence[str]], sentences: Sequence[str]) -> np.ndarray:
    """The index of the most similar training sentence, the first of equal ones, for each sentence.

    The search is exact. It reads the training sentences twice, one block at a time. Memory grows
    with the size of a block and with the number of different trigrams, not with the number of
    training sentences.

    Args:
        blocks: the training sentences in order; iterated over twice.
        sentences: the sentences to compare with them.

    Returns:
        int64 [sentences]; 0 for a sentence that shares no trigram with a training sentence.

    """
    keys, idf = _inverse_document_frequencies(blocks)
    rows, ids, weights = _weighted(sentences, keys, idf)
    starts = np.searchsorted(rows, np.arange(len(sentences) + 1))
    vectors = [(ids[a:b], weights[a:b]) for a, b in itertools.pairwise(starts)]
    wanted = np.zeros(len(keys), bool)
    wanted[ids] = True
    best, found = np.zeros(len(sentences)), np.zeros(len(sentences), np.int64)
    first = 0
    for block in blocks:
        index = _Index(block, keys, idf, wanted)
        for i, vector in enumerate(vectors):
            similarities = index.similarities(*vector)
            place = similarities.argmax() if len(block) else 0
            if len(block) and similarities[place] > best[i]:
                best[i], found[i] = similarities[place], first + place
        first += len(block)
    return found


class _Index:
    """The unit vectors of a block's sentences, by trigram."""

    def __init__(self, block, keys, idf, wanted):
        rows, ids, weights = _weighted(block, keys, idf)
        weights = weights / np.sqrt(np.bincount(rows, weights**2, len(block)))[rows]
        chosen = np.flatnonzero(wanted[ids])
        chosen = chosen[np.argsort(ids[chosen], kind="stable")]
        self._rows, self._weights, self._size = rows[chosen], weights[chosen], len(block)
        self._ends = np.searchsorted(ids[chosen], np.arange(len(keys) + 1))

    def similarities(self, ids, weights):
        """[block]: the products of the block's unit vectors with the vector of a sentence."""
        starts, ends = self._ends[ids], self._ends[ids + 1]
        parts = [slice(a, b) for a, b in zip(starts, ends, strict=True)]
        if not parts:
            return np.zeros(self._size)
        rows = np.concatenate([self._rows[part] for part in parts])
        products = np.concatenate([self._weights[part] for part in parts])
        products *= np.repeat(weights, ends - starts)
        return np.bincount(rows, products, self._size)


def _inverse_document_frequencies(blocks) -> tuple[np.ndarray, np.ndarray]:
    """The different trigrams of the training sentences, sorted, and their weights."""
    keys: np.ndarray = np.zeros(0, np.uint64)
    frequencies: np.ndarray = np.zeros(0)
    total = 0
    for block in blocks:
        new, counts = np.unique(_trigrams(block)[1], return_counts=True)
        keys, places = np.unique(np.append(keys, new), return_inverse=True)
        frequencies = np.bincount(places, np.append(frequencies, counts))
        total += len(block)
    return keys, np.log((1 + total) / (1 + frequencies)) + 1


def _weighted(sentences, keys, idf):
    """(rows, ids, weights) of the trigrams that are in keys; ids are indices of keys."""
    rows, found, counts = _trigrams(sentences)
    ids = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
    known = keys[ids] == found
    return rows[known], ids[known], counts[known] * idf[ids[known]]


def _trigrams(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, key, count) of the different trigrams of each sentence, by row and key.

    A sentence has a space in front and one at its end.
    """
    texts = [f" {sentence.lower()} " for sentence in sentences]
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    row_of = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    size = max(0, len(codes) - _N + 1)
    parts = [codes[i : i + size].astype(np.uint64) << _SHIFTS[i] for i in range(_N)]
    keys = np.bitwise_or.reduce(parts)
    inside = row_of[:size] == row_of[_N - 1 :]
    rows, keys = row_of[:size][inside], keys[inside]
    order = np.lexsort((keys, rows))
    rows, keys = rows[order], keys[order]
    new = np.ones(len(keys), bool)
    new[1:] = (np.diff(rows) != 0) | (keys[1:] != keys[:-1])
    starts = np.flatnonzero(new)
    return rows[starts], keys[starts], np.diff(np.append(starts, len(keys)))
