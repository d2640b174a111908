"""Lines of text in blocks, so that only one block is in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.corpora import SentencePair

_BLOCK_LINES, _BLOCK_CHARACTERS = 20_000, 8_000_000


def split_into_blocks(lines: Iterable[SentencePair]) -> Iterator[list[SentencePair]]:
    """Cuts lines into blocks of at most _BLOCK_LINES and about _BLOCK_CHARACTERS."""
    block: list[SentencePair] = []
    characters = 0
    for line in lines:
        block.append(line)
        characters += len(line.source) + len(line.target)
        if len(block) >= _BLOCK_LINES or characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


class Block(NamedTuple):
    """A block of texts on disk.

    Attributes:
        lines: number of texts.
        read: reads the texts.
    """

    lines: int
    read: Callable[[], list[str]]


class Texts(Sequence):
    """Texts on disk as a sequence; one block at a time is in memory."""

    def __init__(self, blocks: Iterable[Block]):
        self._blocks = [block for block in blocks if block.lines]
        self._ends = np.cumsum([block.lines for block in self._blocks], dtype=np.int64)
        self._loaded: tuple[int, list[str]] = -1, []

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._blocks else 0

    def __getitem__(self, index):
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._block(number)[index - self._ends[number]]

    def __iter__(self) -> Iterator[str]:
        return (text for number in range(len(self._blocks)) for text in self._block(number))

    def _block(self, number: int) -> list[str]:
        if self._loaded[0] != number:
            self._loaded = number, self._blocks[number].read()
        return self._loaded[1]
