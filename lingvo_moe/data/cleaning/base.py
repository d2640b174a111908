"""The interface of a cleaning rule, the rule always in use, and which texts are the same."""

import abc
import dataclasses
import unicodedata
from typing import ClassVar

from lingvo_moe.config.fields import Params
from lingvo_moe.system.lines import is_blank


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleaningRule(Params, abc.ABC):
    """A policy: which lines of train are dropped. It sees one line at a time. The class has a
    `name`, that of its count in `dataset.json` and in reports."""

    name: ClassVar[str]

    @abc.abstractmethod
    def drops(self, texts: tuple[str, str], languages: tuple[str, str]) -> bool:
        """Whether a line is dropped; texts and languages' codes are those of source and target."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Empty(CleaningRule):
    """A side is blank; see `system.lines.is_blank`. Always in use, in dev and test too."""

    name = "empty"

    def drops(self, texts, languages):
        return any(map(is_blank, texts))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sameness(Params, abc.ABC):
    """A policy: which texts count as the same, for repeated lines and for held-out text. It
    compares texts as the vocabulary reads them: normalized, with one space for white space."""

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
    """Texts that differ only in case, spaces, punctuation or Unicode compatibility are the same."""

    def key(self, text):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        kept = (c for c in folded if unicodedata.category(c)[0] in "LMN")
        return "".join(kept) or text  # a text without letters and digits, such as "!"
