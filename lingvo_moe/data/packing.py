"""Packing sentence pairs into rows of fixed shape.  B rows, L source length, T target length."""

import numpy as np

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.dataset import Example
from lingvo_moe.data.vocabulary import BOS


class Packer:
    """Fills one batch, first-fit: each example goes to the first row with room on both sides."""

    def __init__(self, batch_size: int, source_length: int, target_length: int):
        """An empty batch of B rows of L source and T target tokens."""
        self._lengths = source_length, target_length
        # Arrays over rows make the search fast: a batch may have thousands of rows.
        self._room = np.full([batch_size, 2], self._lengths).T.copy()
        self._segments = np.zeros(batch_size, np.int64)
        source, target = (batch_size, source_length), (batch_size, target_length)
        self._batch = NestedMap(
            {
                name: np.zeros(source, np.int32)
                for name in ("source_ids", "source_segment_ids", "source_pair_ids")
            }
            | {
                name: np.zeros(target, np.int32)
                for name in ("target_inputs", "target_ids", "target_segment_ids", "target_pair_ids")
            }
        )

    def fits_empty_row(self, example: Example) -> bool:
        """Whether the example fits an empty row."""
        return len(example.source) <= self._lengths[0] and len(example.target) <= self._lengths[1]

    def add(self, example: Example, pair_index: int) -> bool:
        """Places the example; returns False if no row has room for it."""
        sizes = len(example.source), len(example.target)
        fits = (self._room[0] >= sizes[0]) & (self._room[1] >= sizes[1])
        row = int(np.argmax(fits))
        if not fits[row]:
            return False
        self._segments[row] += 1
        self._write(row, self._segments[row], example, pair_index)
        self._room[:, row] -= sizes
        return True

    def _write(self, row, segment, example, pair_index):
        batch, (start, target_start) = self._batch, self._lengths - self._room[:, row]
        source = slice(start, start + len(example.source))
        target = slice(target_start, target_start + len(example.target))
        batch.source_ids[row, source] = example.source
        batch.source_segment_ids[row, source] = segment
        batch.source_pair_ids[row, source] = pair_index
        batch.target_ids[row, target] = example.target
        batch.target_inputs[row, target_start] = BOS
        batch.target_inputs[row, target_start + 1 : target.stop] = example.target[:-1]
        batch.target_segment_ids[row, target] = segment
        batch.target_pair_ids[row, target] = pair_index

    @property
    def empty(self) -> bool:
        """Whether nothing has been placed."""
        return not self._segments.any()

    def batch(self) -> NestedMap:
        """The batch, int32 arrays.

        Returns:
            source_ids, source_segment_ids, source_pair_ids [B, L]; target_inputs (shifted right,
            BOS first), target_ids, target_segment_ids, target_pair_ids [B, T]. Segments count from
            1 in each row; 0 is padding.
        """
        return self._batch
