"""Sides of very different length."""

import dataclasses
import unicodedata
from typing import Annotated

from lingvo_moe.core.fields import NonNegativeInt, Rule
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthRatio(CleaningRule):
    """One side has many times the letters of the other.

    Characters are counted, wide ones three times: a Chinese character is worth about three letters.

    Attributes:
        largest: the largest ratio that is kept.
        added: letters that are added to both sides first, so that short lines may differ more.
    """

    name = "length_ratio"
    largest: Annotated[float, Rule("> 1", lambda ratio: ratio > 1)] = 4.0
    added: NonNegativeInt = 15

    def drops(self, texts, languages):
        shorter, longer = sorted(_letters(text) + self.added for text in texts)
        return longer > self.largest * shorter


def _letters(text):
    return len(text) + 2 * sum(unicodedata.east_asian_width(c) in "WF" for c in text)
