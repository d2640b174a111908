"""The interface of models that the server can serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lingvo_moe.core.fields import Params, PositiveInt

if TYPE_CHECKING:  # a server starts before TensorFlow is imported
    from lingvo_moe.tasks.scorer import Score
    from lingvo_moe.tasks.translator import Translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionLimits(Params):
    """Limits for the options of a request. A model's own beam and lengths are always allowed.

    Attributes:
        n_best: number of translations of a sentence.
        beam_size: of a search.
        output_tokens: of the longest translation that the options allow for a sentence.
        batch_tokens: the limit of a batch, with padding. The parts of a text above the limit are
            translated in several batches.
    """

    n_best: PositiveInt = 4
    beam_size: PositiveInt = 8
    output_tokens: PositiveInt = 1024
    batch_tokens: PositiveInt = 4096


class TooLong(ValueError):
    """The options allow longer translations than the server does."""


class Size(NamedTuple):
    """The size of a sentence, or of all its parts together if it is split.

    Attributes:
        pieces: number of pieces that are read.
        left_out: number of pieces that are not.
        longest: number of tokens of its longest translation.
    """

    pieces: int
    left_out: int
    longest: int

    @property
    def tokens(self) -> int:
        """Its share of a batch: the pieces, or half of the longest translation if that is more."""
        return max(self.pieces, self.longest // 2)


class Model(Protocol):
    """A model that can be served, such as `Exported`.

    Attributes:
        languages: the target languages.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        n_best: largest number of translations of a sentence.
        max_pieces: longer sentences are not scored.
        options: names of the options of a request.
        scores: whether the model has `score`.
        explains: whether it has `explain`, as `lingvo_moe.tasks.model.Model`.
    """

    languages: Sequence[str]
    pairs: Sequence[str]
    needs_source_language: bool
    n_best: int
    max_pieces: int
    options: Sequence[str]
    scores: bool
    explains: bool

    def measure(self, sentences: Sequence[str], **options: Any) -> list[Size]:
        """Checks options and measures sentences, before a request waits.

        Raises:
            ValueError: an option that does not exist, or whose value is not allowed.
            TooLong: a translation may be too long.
        """

    def translate(
        self,
        sentences: Sequence[str],
        to: str,
        *,
        source_language: str | None,
        warn: Callable[[str], None],
        **options: Any,
    ) -> list[list[Translation]]:
        """Translates sentences; without the option n_best, one translation of each.

        Raises:
            ValueError: the model does not know a language, or needs the source language.
        """

    def sizes(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[int, int]]:
        """The number of pieces of each source and of its target."""

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str,
        *,
        source_language: str | None,
    ) -> Sequence[Score]:
        """The log-probability of each target.

        Raises:
            ValueError: as `translate`.
        """
