"""Batches for decoding: sentences of similar length together."""

from collections.abc import Iterator, Sequence

import numpy as np

from lingvo_moe.data.vocabulary import PAD

_BUCKET = 8  # lengths are rounded up to a multiple of this, to have few different shapes


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Batches of sentences sorted by length, longest first, so that memory errors occur early.

    Args:
        lengths: tokens of each sentence.
        max_tokens: of a batch, padding included; a longer sentence is a batch of its own.

    Yields:
        Indices of the sentences of a batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while order:
        rows = max(1, max_tokens // _rounded_up(lengths[order[0]]))
        yield order[:rows]
        del order[:rows]


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
    ids = np.full((len(sentences), _rounded_up(int(lengths.max()))), PAD, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids, lengths


def _rounded_up(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET
