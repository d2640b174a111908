"""Lines that are not translated."""

import dataclasses

from lingvo_moe.core.fields import NonNegativeInt
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identical(CleaningRule):
    """Both sides are equal but for case.

    Attributes:
        longest: characters of such lines that are kept: names and numbers are often equal.
    """

    name = "identical"
    longest: NonNegativeInt = 20

    def drops(self, texts, languages):
        source, target = texts
        return len(source) > self.longest and source.casefold() == target.casefold()
