"""Numbers and URLs that a translation must copy."""

import abc
import collections
import dataclasses
import re
import unicodedata

from lingvo_moe.data.cleaning.base import CleaningRule

_URL = re.compile(r"(?:https?|ftp)://[^\s<>\"'()（）。，、]+|www\.[^\s<>\"'()（）。，、]+")
_NUMBER = re.compile(r"\d+(?:[.,٫٬'’\u00a0\u202f]\d+)*")


class _Copied(CleaningRule, abc.ABC):
    """Something that must occur equally often on both sides."""

    @abc.abstractmethod
    def found(self, text: str) -> list[str]:
        """The parts of a text that must occur in the other text."""

    def drops(self, texts, languages):
        source, target = (collections.Counter(self.found(text)) for text in texts)
        return source != target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Urls(_Copied):
    """The sides have different URLs."""

    name = "urls"

    def found(self, text):
        return [url.rstrip(".,;:!?…") for url in _URL.findall(text)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers(_Copied):
    """The sides have different numbers, in digits of any script, without separators.

    A number that one side writes as a word counts as different, so this suits technical text.
    """

    name = "numbers"

    def found(self, text):
        digits = ([c for c in number if c.isdecimal()] for number in _NUMBER.findall(text))
        return ["".join(str(unicodedata.decimal(c)) for c in number) for number in digits]
