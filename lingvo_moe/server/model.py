"""What a model must do to be served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # a server starts before TensorFlow is imported
    from lingvo_moe.tasks.translator import Translation


class Model(Protocol):
    """What a model must do to be served; `Exported` does.

    Attributes:
        languages: those that it translates into.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether it must be told what language it reads.
        n_best: translations of a sentence, at most.
        max_pieces: of a longer sentence the rest is not read.
    """

    languages: Sequence[str]
    pairs: Sequence[str]
    needs_source_language: bool
    n_best: int
    max_pieces: int

    def count_pieces(self, sentences: Sequence[str]) -> list[int]:
        """How many pieces each sentence has."""

    def translate(
        self,
        sentences: Sequence[str],
        to: str,
        *,
        source_language: str | None,
        n_best: int,
        warn: Callable[[str], None],
    ) -> list[list[Translation]]:
        """Translates sentences.

        Raises:
            ValueError: the model does not know a language, or needs the source language.
        """


class Token(NamedTuple):
    """A piece of a sentence or of its translation.

    Attributes:
        text: the piece, with "▁" for a space.
        log_prob: of a translation, log P given the source and the pieces before; else None.
        experts: MoE layer -> (expert, what its output is multiplied by) of those that the piece
            went to; in the decoder those that made it.
    """

    text: str
    log_prob: float | None
    experts: dict[str, list[tuple[int, float]]]


class Explanation(NamedTuple):
    """The pieces that the model read, the language's tag and the end included, and wrote."""

    source: list[Token]
    target: list[Token]
