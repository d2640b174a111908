"""Policies that decide which texts count as the same."""

import abc
import dataclasses
import unicodedata

from lingvo_moe.core.fields import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sameness(Params, abc.ABC):
    """A policy: which texts count as the same, for repeated lines and for held-out text.

    It compares texts as the vocabulary reads them: normalized, with one space for white space.
    """

    @abc.abstractmethod
    def key(self, text: str) -> str:
        """The key of a text. Texts with equal keys count as the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact(Sameness):
    """Only equal texts are the same."""

    def key(self, text):
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Near(Sameness):
    """Texts that differ only in case, spaces, punctuation or Unicode compatibility are the same.

    Attributes:
        numbers: whether all digits count as the same, too.
    """

    numbers: bool = False

    def key(self, text):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        kept = (("0" if self.numbers and c.isdigit() else c) for c in folded if _is_content(c))
        key = "".join(kept)
        # A text without letters and digits, such as "!", stays itself.
        return key or text


def _is_content(character):
    return unicodedata.category(character)[0] in "LMN"
