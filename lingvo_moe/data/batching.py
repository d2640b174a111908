"""Padded batches of token ids, for decoding."""

from collections.abc import Iterator, Sequence

import numpy as np

from lingvo_moe.core.batching import batches, rounded_up
from lingvo_moe.data.vocabulary import PAD


def padded_batches(
    sentences: Sequence[Sequence[int]], max_tokens: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """`batches` of token ids.

    Yields:
        Indices of the sentences in the input; ids int32 [B, L], padded with PAD; lengths int32 [B].
    """
    for indices in batches([len(sentence) for sentence in sentences], max_tokens):
        yield indices, *padded([sentences[i] for i in indices])


def padded(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """One batch: ids int32 [B, L], padded with PAD, and lengths int32 [B].

    Args:
        sentences: token ids of at least one sentence.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    ids = np.full((len(sentences), rounded_up(int(lengths.max()))), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lengths
