"""Lines that were not translated."""

import dataclasses

from lingvo_moe.core.fields import NonNegativeInt
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identical(CleaningRule):
    """Both sides are equal, except for case.

    Attributes:
        longest: such lines of at most this number of characters are kept, as names are often equal.
    """

    name = "identical"
    longest: NonNegativeInt = 20

    def drops(self, texts, languages):
        source, target = texts
        return len(source) > self.longest and source.casefold() == target.casefold()
