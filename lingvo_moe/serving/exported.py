"""A SavedModel of `lingvo-moe-export` in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from lingvo_moe.core.fields import conforms, short_repr
from lingvo_moe.core.lines import cut_warning, is_blank
from lingvo_moe.data.batching import batches
from lingvo_moe.serving import client
from lingvo_moe.tasks.translator import Translation


class Exported:
    """Translates with an exported model.

    Attributes:
        languages: the target languages, sorted.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        n_best: largest number of translations of a sentence, fixed at export.
        max_pieces: longer sentences are cut to this number of pieces.
        options: names of the options of a request; all else is fixed at export.
    """

    options: Sequence[str] = ("n_best",)

    def __init__(self, path: str | Path):
        """Loads it.

        Raises:
            ValueError, OSError: it is no export, or was made by an earlier version.
        """
        self._model, self._wanted = client.load(str(path))
        if not hasattr(self._model, "about"):
            raise ValueError(
                f"{path} was exported by an earlier version of lingvo_moe; export the model again."
            )
        about = {name: value.numpy() for name, value in self._model.about().items()}
        self.languages: Sequence[str] = [language.decode() for language in about["languages"]]
        self.pairs: Sequence[str] = tuple(pair.decode() for pair in about["pairs"])
        self.needs_source_language = "source_language" in self._wanted
        self.n_best, self.max_pieces = int(about["n_best"]), int(about["max_pieces"])

    def measure(self, sentences: Sequence[str], **options: Any) -> list[tuple[int, int]]:
        """How many pieces of each sentence are read, and how many are left out."""
        del options
        counts = [
            0 if is_blank(sentence) else count
            for sentence, count in zip(sentences, self.count_pieces(sentences), strict=True)
        ]
        return [(min(n, self.max_pieces), max(0, n - self.max_pieces)) for n in counts]

    def count_pieces(self, sentences: Sequence[str]) -> list[int]:
        """The number of pieces of the source vocabulary of each sentence."""
        return self._model.count_pieces(list(sentences) or [""]).numpy().tolist()[: len(sentences)]

    def translate(
        self,
        sentences: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
        n_best: int = 1,
        warn: Callable[[str], None] = logging.warning,
        batch_tokens: int = 2048,
        **options: Any,
    ) -> list[list[Translation]]:
        """Translates sentences; blank sentences have empty translations.

        Args:
            sentences: in any languages the model knows.
            to: the language to translate into.
            source_language: which language all sentences are in; only models whose router goes by
                it need it, others pass over it.
            n_best: translations of a sentence, at most the attribute n_best.
            warn: takes a line about sentences that are too long.
            batch_tokens: source tokens that are decoded together, padding included.
            **options: of a search, all of which are refused.

        Returns:
            For each sentence its n best translations, best first. If the search found fewer, the
            last are empty with score -inf.

        Raises:
            ValueError: the model does not know a language, needs the source language, or does not
                find so many translations; or an option that is fixed.
        """
        self.check_options({**options, "n_best": n_best})
        languages = self._check(to, source_language)
        results: list[list[Translation]] = [[] for _ in sentences]
        counts = self.count_pieces(sentences)
        left_out: dict[int, int] = {}
        for places in batches(counts, batch_tokens):
            output = client.call(self._model, [sentences[i] for i in places], languages)
            texts, scores, cut = (
                output[name].numpy() for name in ("translations", "scores", "left_out")
            )
            for i, row, values, count in zip(places, texts, scores, cut, strict=True):
                best = zip(row[:n_best], values[:n_best], strict=True)
                results[i] = [Translation(text.decode(), float(score)) for text, score in best]
                left_out |= {i + 1: int(count)} if count else {}
        if left_out:
            warn(cut_warning(left_out))
        return results

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Checks the options of a request.

        Raises:
            ValueError: one that is fixed at export, or more translations than it finds.
        """
        for name in options:
            if name not in self.options:
                raise ValueError(
                    f"{name} is fixed in an export; translate with the logdir, or export it again "
                    f"with --set=decoding.{name}=…"
                )
        n_best = options.get("n_best", 1)
        if not conforms(n_best, int) or not 1 <= n_best <= self.n_best:
            raise ValueError(
                f"n_best must be 1 to {self.n_best}, got {short_repr(n_best)}; export with a "
                f"larger --set=decoding.n_best for more."
            )

    def _check(self, to, source_language):
        """The language arguments of the SavedModel."""
        if to not in self.languages:
            raise ValueError(
                f"This model does not translate into {to!r}; it knows {', '.join(self.languages)}."
            )
        if self.needs_source_language and source_language is None:
            raise ValueError(
                "This model routes by source language; give "
                f"source_language. It was trained on {', '.join(self.pairs)}."
            )
        given = {"target_language": to, "source_language": source_language}
        return {name: client.tf.constant(given[name]) for name in self._wanted}
