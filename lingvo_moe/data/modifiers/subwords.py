"""Subword regularization."""

import dataclasses
import functools
import random

from lingvo_moe.core.fields import Rate, Share
from lingvo_moe.data.modifiers.base import OfSides
from lingvo_moe.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subwords(OfSides):
    """Splits some pieces in two, and some of their parts again; the text stays the same.

    The purpose is that of subword regularization (Kudo 2018) and BPE-dropout (Provilkov et al.
    2020). SentencePiece's own sampling is not used, because it cannot be seeded for each sentence.

    Attributes:
        rate: the probability that a piece is split, if the vocabulary has two pieces that spell it.
    """

    share: Share = 1.0
    rate: Rate = 0.1

    def change(self, ids: list[int], vocabulary: Vocabulary, rng: random.Random) -> list[int]:
        """See OfSides."""
        cuts, spelled, left = _cuts(vocabulary), [], list(reversed(ids))
        while left:
            piece = left.pop()
            ways = cuts.get(piece)
            if ways and rng.random() < self.rate:
                left.extend(reversed(ways[int(len(ways) * rng.random())]))
            else:
                spelled.append(piece)
        return spelled


@functools.lru_cache(4)
def _cuts(vocabulary: Vocabulary) -> dict[int, list[tuple[int, int]]]:
    """Piece -> the pairs of pieces that spell it; without control symbols and bytes."""
    pieces = vocabulary.pieces(range(vocabulary.size))
    ids = {p: i for i, p in enumerate(pieces) if not (p.startswith("<") and p.endswith(">"))}
    found = {
        i: [
            (ids[piece[:at]], ids[piece[at:]])
            for at in range(1, len(piece))
            if piece[:at] in ids and piece[at:] in ids
        ]
        for piece, i in ids.items()
    }
    return {i: ways for i, ways in found.items() if ways}
