"""The training sentence most similar to a sentence.

Similarity is the cosine of TF-IDF vectors of character trigrams in lower case. The targets of these
sentences are copies from the training text. Their BLEU is a floor: a model with no more has learned
little.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse

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

    Returns int64 [sentences]; 0 for a sentence that shares no trigram with a training sentence.
    """
    keys, idf = _inverse_document_frequencies(blocks)
    queries = _vectors(sentences, keys, idf)
    best, found, first = np.zeros(len(sentences)), np.zeros(len(sentences), np.int64), 0
    for block in blocks:
        vectors = _vectors(block, keys, idf)
        lengths = np.sqrt(vectors.multiply(vectors).sum(axis=1)).clip(1e-9)
        by_trigram = sparse.csc_array(vectors / np.asarray(lengths).reshape(-1, 1))
        for i, (start, end) in enumerate(itertools.pairwise(queries.indptr)):
            ids = queries.indices[start:end]
            similarities = by_trigram[:, ids] @ queries.data[start:end]
            place = similarities.argmax() if len(block) else 0
            if len(block) and similarities[place] > best[i]:
                best[i], found[i] = similarities[place], first + place
        first += len(block)
    return found


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


def _vectors(sentences, keys, idf) -> sparse.csr_array:
    """[sentences, keys], the weights of the trigrams that are in keys."""
    rows, found, counts = _trigrams(sentences)
    ids = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
    known = keys[ids] == found
    weights = counts[known] * idf[ids[known]]
    return sparse.csr_array((weights, (rows[known], ids[known])), (len(sentences), len(keys)))


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
