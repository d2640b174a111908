"""Missing punctuation."""

import dataclasses
import random
import unicodedata
from typing import Literal

from lingvo_moe.data.modifiers.base import OfText


@dataclasses.dataclass(frozen=True, kw_only=True)
class Punctuation(OfText):
    """Removes punctuation (Unicode's categories P).

    Attributes:
        where: "end" for punctuation at the end of the text, or "everywhere".
    """

    where: Literal["end", "everywhere"] = "end"

    def change_text(self, text: str, rng: random.Random) -> str:
        """See OfText."""
        if self.where == "everywhere":
            return "".join(c for c in text if not _is_punctuation(c))
        while text and _is_punctuation(text[-1]):
            text = text[:-1].rstrip()
        return text


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P"
