"""Batches for decoding: sentences of like length together."""

from collections.abc import Iterator, Sequence

import numpy as np

from lingvo_moe.data.vocabulary import PAD

_BUCKET = 8  # lengths are rounded up to a multiple, so that few shapes occur


def padded_batches(
    sentences: Sequence[Sequence[int]], batch_size: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Batches of sentences sorted by length, longest first (memory runs out early or not at all).

    Args:
        sentences: token ids.
        batch_size: sentences a batch, at most.

    Yields:
        The sentences' places in the input; ids int32 [B, L], padded with PAD; lengths int32 [B].
    """
    order = sorted(range(len(sentences)), key=lambda i: (-len(sentences[i]), i))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        lengths = np.array([len(sentences[i]) for i in indices], np.int32)
        ids = np.full((len(indices), -(-int(lengths[0]) // _BUCKET) * _BUCKET), PAD, np.int32)
        for row, i in enumerate(indices):
            ids[row, : lengths[row]] = sentences[i]
        yield indices, ids, lengths
