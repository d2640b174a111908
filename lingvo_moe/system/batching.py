"""Batches by tokens: sentences of similar length together.

Exported models contain a copy of this file, so it imports only the standard library.
"""

from collections.abc import Iterator, Sequence

_BUCKET = 8  # lengths are rounded up to a multiple of this, to have few different shapes


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Batches of indices of sentences sorted by length, longest first, so that memory errors occur
    early, of at most so many tokens, padding included; a longer sentence is a batch of its own."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while order:
        rows = max(1, max_tokens // max(1, rounded_up(lengths[order[0]])))
        yield order[:rows]
        del order[:rows]


def rounded_up(length: int) -> int:
    """The padded length of a batch whose longest sentence has this length."""
    return -(-length // _BUCKET) * _BUCKET
