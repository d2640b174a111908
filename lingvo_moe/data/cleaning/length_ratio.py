"""Sides of very different length."""

import dataclasses
from typing import Annotated

from lingvo_moe.core.fields import NonNegativeInt, Rule
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthRatio(CleaningRule):
    """One side has many times the UTF-8 bytes of the other.

    Bytes are counted because a Chinese character has three bytes and is worth about three letters.

    Attributes:
        largest: the largest ratio that is kept.
        added: bytes that are added to both sides first, so that short lines may differ more.
    """

    name = "length_ratio"
    largest: Annotated[float, Rule("> 1", lambda ratio: ratio > 1)] = 4.0
    added: NonNegativeInt = 15

    def drops(self, texts, languages):
        shorter, longer = sorted(len(text.encode()) + self.added for text in texts)
        return longer > self.largest * shorter
