"""Upper, lower or title case."""

import dataclasses
import random
import re
from typing import Literal

from lingvo_moe.data.modifiers.base import OfText

_WORD = r"(\w)((?:[\w\u0300-\u036f]|['’](?=\w))*)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Casing(OfText):
    """Changes the case of all letters, so that models learn to translate headlines, for example.

    Attributes:
        style: "upper" or "lower", as str.upper and str.lower, or "title": each word begins with a
            capital, also with an apostrophe in it (Don't).
        sides: "source" changes the source alone; with "both" (the default) a source in capitals has
            a translation in capitals.
    """

    sides: Literal["source", "both"] = "both"
    style: Literal["upper", "lower", "title"] = "upper"

    def change_text(self, text: str, rng: random.Random) -> str:
        """See OfText."""
        if self.style == "title":
            return re.sub(_WORD, lambda word: word[1].title() + word[2].lower(), text)
        return getattr(text, self.style)()
