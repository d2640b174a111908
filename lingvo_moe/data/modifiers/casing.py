"""Upper, lower or title case."""

import dataclasses
import random
from typing import Literal

from lingvo_moe.data.modifiers.base import OfText


@dataclasses.dataclass(frozen=True, kw_only=True)
class Casing(OfText):
    """Changes the case of all letters, so that models learn to translate headlines, for example.

    Attributes:
        style: "upper", "lower" or "title", as str.upper, str.lower and str.title.
        sides: "source" changes the source alone; with "both" (the default) a source in capitals has
            a translation in capitals.
    """

    sides: Literal["source", "both"] = "both"
    style: Literal["upper", "lower", "title"] = "upper"

    def change_text(self, text: str, rng: random.Random) -> str:
        """See OfText."""
        return getattr(text, self.style)()
