"""Where the tags of languages stand around a sentence and its translation."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from lingvo_moe.config.fields import Params
from lingvo_moe.nn.special_tokens import BOS, EOS


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageTags(Params, abc.ABC):
    """A policy: the tags of languages in the inputs of a model.

    Attributes:
        in_front: the languages whose tags precede a sentence to translate, in order: "source",
            "target".
        on_target: whether a target begins with the tag of its language. The first tag in front of a
            sentence to translate is then given to the decoder; the encoder does not read it.
        start: the first input of the decoder.
    """

    in_front: ClassVar[tuple[str, ...]]
    on_target: ClassVar[bool] = False
    start: ClassVar[int] = BOS

    @property
    def needs_source_language(self) -> bool:
        """Whether the language of a sentence to translate must be known."""
        return "source" in self.in_front

    def prefix(self, source: Any, target: Any) -> list[Any]:
        """What precedes a sentence to translate, by the tags of both languages."""
        return [source if language == "source" else target for language in self.in_front]

    def example(
        self, tags: tuple[int, int], source: Sequence[int], target: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Source and target with tags and EOS, for training, of the tags of both languages and the
        pieces."""
        prefix = self.prefix(*tags)
        given = prefix[: int(self.on_target)]
        return [*prefix[len(given) :], *source, EOS], [*given, *target, EOS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnSource(LanguageTags):
    """The tag of the target language in front of the source (Johnson et al. 2017, 1611.04558)."""

    in_front = ("target",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnBothSides(LanguageTags):
    """Each side begins with the tag of its own language; the decoder starts from EOS.

    M2M-100 (Fan et al. 2020, arXiv 2010.11125) and NLLB-200 (arXiv 2207.04672).
    """

    in_front = ("target", "source")
    on_target = True
    start = EOS
