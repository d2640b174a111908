"""A SavedModel of `lingvo-moe-export` in memory."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from lingvo_moe.config.params import from_fields
from lingvo_moe.decoding.fitted import FITTED, Fitted
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import numbers_of
from lingvo_moe.inference.parts import Translation, parts_of
from lingvo_moe.inference.scorer import Score, check_lengths, check_parallel
from lingvo_moe.inference.texts import TextTranslator
from lingvo_moe.inference.translator import check_prefix
from lingvo_moe.nn.one_process import OneProcess
from lingvo_moe.serving import client
from lingvo_moe.system.batching import batches
from lingvo_moe.tasks.languages import check_source_language, check_target_language

# Fields of BeamSearchParams: those that are texts, and those that no export has as options.
_TEXTS = ("source_prefix", "target_prefix")
_NO_OPTIONS = ("separate_caches_from",)


def is_saved_model(directory: Path) -> bool:
    """Whether a model's directory is an exported SavedModel; else it is a logdir. Raises
    ValueError: it is neither."""
    if (directory / "model.json").exists():
        return False
    if (directory / "saved_model.pb").exists():
        return True
    raise ValueError(
        f"{directory} is no model: it has neither the model.json of a logdir nor the "
        f"saved_model.pb of lingvo-moe-export."
    )


class Exported(OneProcess):
    """Translates with an exported model, in the process that loaded it.

    Attributes:
        path: its directory.
        model: the SavedModel.
        languages: the target languages, sorted.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        max_pieces: longer sentences are not scored.
        part_pieces: sentences and longer texts are split into parts of at most so many pieces.
        options: names of the options of a request.
        search: the params of the search at export.
        fitted: what the model's data says about the target languages.
    """

    def __init__(self, path: str | Path):
        """Loads it. Raises ValueError, OSError: it is no export, or is damaged."""
        super().__init__(path)
        self.path = path
        self.model, self._wanted = client.load(path)
        about = self.model.about()
        said = client.plain(about)
        self.languages: Sequence[str] = said["languages"]
        self.pairs: Sequence[str] = tuple(said["pairs"])
        self._sources = said["source_languages"]
        self.needs_source_language = "source_language" in self._wanted
        self.max_pieces, self.part_pieces = said["max_pieces"], said["part_pieces"]
        penalties, ratios, expected = (
            dict(zip(self.languages, map(float, map(str, about[name].numpy())), strict=True))
            for name in FITTED
        )
        self.fitted = Fitted(
            penalties=penalties, ratios=ratios, expected=expected, decomposed=said["decomposed"]
        )
        self.search = from_fields(BeamSearchParams, json.loads(said["search"]), str(path))
        missing = {*_NO_OPTIONS, *(name for name in _TEXTS if name not in said["options"])}
        fields = [field.name for field in dataclasses.fields(BeamSearchParams)]
        self.options: Sequence[str] = [name for name in fields if name not in missing]

    def count_pieces(self, sentences: Sequence[str]) -> list[int]:
        """The number of pieces of the source vocabulary of each sentence."""
        self.check_process()
        return _counts(self.model.count_pieces, sentences)

    def count_target_pieces(self, translations: Sequence[str]) -> list[int]:
        """The number of pieces of the target vocabulary of each translation."""
        self.check_process()
        return _counts(self.model.count_target_pieces, translations)

    def translator(self, **options: Any) -> "ExportedTranslator":
        """A translator with other options than those at export.

        Args:
            **options: as for `translate`.

        Raises ValueError: one that does not exist, does not fit, or is not in the export.
        """
        search = self.search.with_options(options)
        for name in options:
            if name not in self.options:
                raise ValueError(
                    f"{name} is no option of this export; leave it out, or translate with the "
                    f"logdir. The options are {', '.join(self.options)}."
                )
        if search.source_prefix:
            (tokens,) = self.count_pieces([search.source_prefix])
            check_prefix("source_prefix", tokens, self.part_pieces // 2)
        if search.target_prefix:
            (tokens,) = self.count_target_pieces([search.target_prefix.rstrip()])
            check_prefix("target_prefix", tokens, self.part_pieces)
        return ExportedTranslator(
            exported=self,
            decoding=search,
            part_pieces=self.part_pieces,
            # An export whose translations begin with a tag has no option target_prefix.
            tags=int("target_prefix" not in self.options),
            fitted=self.fitted,
            pairs=self.pairs,
        )

    def translate(
        self,
        sentences: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
        n_best: int = 1,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        **options: Any,
    ) -> list[list[Translation]]:
        """As `lingvo_moe.jobs.model.Model.translate`; options are those of `options`."""
        translator = self.translator(n_best=n_best, **options)
        return translator(sentences, to, source_language, progress, warn)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
    ) -> list[Score]:
        """As `lingvo_moe.jobs.model.Model.score`."""
        check_parallel(sources, targets)
        sources, targets = list(sources), list(targets)
        languages = self.languages_of(to, source_language)
        scores: list[Score] = [Score(0.0, (), ())] * len(sources)
        counts = self.count_pieces(sources), self.count_target_pieces(targets)
        for side, lengths in zip(("source", "target"), counts, strict=True):
            check_lengths(side, lengths, self.max_pieces)
        for batch in batches(list(map(max, *counts)), self.search.batch_tokens):
            texts = [[side[i] for i in batch] for side in (sources, targets)]
            output = client.call(self.model.score, *texts, **languages)
            tokens, log_probs = (output[name].numpy() for name in ("tokens", "log_probs"))
            for i, row, values in zip(batch, tokens, log_probs, strict=True):
                pieces = tuple(token.decode() for token in row if token)
                values = tuple(map(float, values[: len(pieces)]))
                scores[i] = Score(sum(values), pieces, values)
        return scores

    def languages_of(self, to: str, source_language: str | None) -> dict[str, tf.Tensor]:
        """The language arguments of the SavedModel. Raises ValueError: it does not know one, or
        needs the source language."""
        check_target_language(to, self.languages)
        if self.needs_source_language and source_language is None:
            raise ValueError(
                "This model routes by source language; give "
                f"source_language. It was trained on {', '.join(self.pairs)}."
            )
        check_source_language(source_language, self._sources)
        given = {"target_language": to, "source_language": source_language}
        return {name: tf.constant(given[name]) for name in self._wanted}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedTranslator(TextTranslator):
    """Translates with an export."""

    exported: Exported  # the export

    def asked(self, target_language, source_language):
        """The languages as arguments of the SavedModel."""
        return self.exported.languages_of(target_language, source_language)

    def count(self, texts):
        """See TextTranslator."""
        return self.exported.count_pieces([self.decoding.source_prefix + text for text in texts])

    def run(self, texts, asked, first):
        """See TextTranslator."""
        model, fixed, search = self.exported.model, self.exported.search, self.decoding
        search = search if first else dataclasses.replace(search, target_prefix="")
        alike = {name: getattr(fixed, name) for name in ("n_best", "batch_tokens")}
        if search.n_best <= fixed.n_best and dataclasses.replace(search, **alike) == fixed:
            # The graph without options is faster.
            output = client.call(model.translate, texts, **asked)
        else:
            texts_given = {n: getattr(search, n) for n in _TEXTS if n in self.exported.options}
            options = numbers_of(search) | texts_given
            output = client.call(model.translate_with, texts, **asked, **options)
        return parts_of(client.plain(output), search.n_best, search.tokens)


def _counts(count, texts):
    """The numbers of pieces, of no texts too, by a function of a model."""
    return count(list(texts) or [""]).numpy().tolist()[: len(texts)]
