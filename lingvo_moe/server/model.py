"""The interface of models that the server can serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a server starts before TensorFlow is imported
    from lingvo_moe.tasks.translator import Translation


class Model(Protocol):
    """A model that can be served, such as `Exported`.

    Attributes:
        languages: the target languages.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        n_best: largest number of translations of a sentence.
        max_pieces: longer sentences are cut to this number of pieces.
        options: names of the options of a request.
    """

    languages: Sequence[str]
    pairs: Sequence[str]
    needs_source_language: bool
    n_best: int
    max_pieces: int
    options: Sequence[str]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Checks options before a request waits.

        Raises:
            ValueError: one that does not exist, or whose value is not allowed.
        """

    def measure(self, sentences: Sequence[str], **options: Any) -> list[tuple[int, int]]:
        """How many pieces of each sentence are read, and how many are left out."""

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
