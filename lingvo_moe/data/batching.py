"""Batches for decoding: sentences of similar length together."""

from collections.abc import Iterator, Sequence

import numpy as np

from lingvo_moe.data.vocabulary import PAD

_BUCKET = 8  # lengths are rounded up to a multiple of this, to have few different shapes


def padded_batches(
    sentences: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Batches of sentences sorted by length, longest first, so that memory errors occur early.

    Args:
        sentences: token ids.
        batch_size: sentences a batch, at most.

    Yields:
        Indices of the sentences in the input; ids int32 [B, L], padded with PAD; lengths int32 [B].
    """
    order = sorted(range(len(sentences)), key=lambda i: (-len(sentences[i]), i))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield indices, *padded([sentences[i] for i in indices])


def padded(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """One batch: ids int32 [B, L], padded with PAD, and lengths int32 [B].

    Args:
        sentences: token ids of at least one sentence.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    ids = np.full((len(sentences), -(-int(lengths.max()) // _BUCKET) * _BUCKET), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lengths
