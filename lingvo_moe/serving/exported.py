"""A SavedModel of `lingvo-moe-export` in memory."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from lingvo_moe.core.batching import batches
from lingvo_moe.core.lines import cut_warning
from lingvo_moe.core.one_process import OneProcess
from lingvo_moe.data.sentences import left_out, sentence_language, split_texts
from lingvo_moe.decoding.fitted import FITTED, Fitted
from lingvo_moe.decoding.params import MAX_BEAM, BeamSearchParams
from lingvo_moe.decoding.request import numbers_of, search_of
from lingvo_moe.serving import client
from lingvo_moe.tasks.languages import check_source_language, check_target_language
from lingvo_moe.tasks.parts import Translation, parts_of, translate_parts, translations_of
from lingvo_moe.tasks.scorer import Score, check_lengths, check_parallel
from lingvo_moe.tasks.translator import check_source_prefix, check_target_prefix, check_texts

# Fields of BeamSearchParams: those that are texts, and those that no export has as options.
_TEXTS = ("forbidden", "source_prefix", "target_prefix")
_NO_OPTIONS = ("batch_tokens", "cache", "shortlist", "rules")


def is_saved_model(directory: Path) -> bool:
    """Whether a model's directory is an exported SavedModel; else it is a logdir.

    Raises:
        ValueError: it is neither.
    """
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
        languages: the target languages, sorted.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        n_best: largest number of translations of a sentence.
        max_pieces: longer sentences are not scored.
        part_pieces: sentences and longer texts are split into parts of at most so many pieces.
        options: names of the options of a request.
        scores: whether it has `score`.
        fitted: numbers of the target languages.
    """

    def __init__(self, path: str | Path):
        """Loads it.

        Raises:
            ValueError, OSError: it is no export, or is damaged.
        """
        super().__init__(path)
        self.path = path
        self._model, self._wanted = client.load(str(path))
        about = self._model.about()
        self.languages: Sequence[str] = [name.decode() for name in about["languages"].numpy()]
        self.pairs: Sequence[str] = tuple(pair.decode() for pair in about["pairs"].numpy())
        self._sources: Sequence[str] = [name.decode() for name in about["source_languages"].numpy()]
        self.needs_source_language = "source_language" in self._wanted
        self.max_pieces, self.part_pieces = int(about["max_pieces"]), int(about["part_pieces"])
        n_best = int(about["n_best"])
        self._names = frozenset(about.get("options", ()))
        self._forms = client.plain(about["forms"])
        self.scores = bool(self._names)
        self._search = BeamSearchParams(n_best=n_best)
        penalties, ratios = (
            dict(zip(self.languages, map(float, map(str, about[name].numpy())), strict=True))
            for name in FITTED
        )
        self.fitted = Fitted(penalties=penalties, ratios=ratios)
        self.n_best = n_best
        self.options: Sequence[str] = ["n_best"]
        if self._names:
            values = {name: value.numpy() for name, value in about["options"].items()}
            self._search = search_of(values)
            self.n_best = MAX_BEAM
            fields = [field.name for field in dataclasses.fields(BeamSearchParams)]
            missing = {*_NO_OPTIONS, *(set(_TEXTS) - self._names)}
            self.options = [name for name in fields if name not in missing]

    def count_pieces(self, sentences: Sequence[str]) -> list[int]:
        """The number of pieces of the source vocabulary of each sentence."""
        self.check_process()
        return _counts(self._model.count_pieces, sentences)

    def count_target_pieces(self, translations: Sequence[str]) -> list[int]:
        """The number of pieces of the target vocabulary of each translation."""
        self.check_process()
        return _counts(self._model.count_target_pieces, translations)

    def translate(
        self,
        sentences: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
        n_best: int = 1,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        batch_tokens: int = 2048,
        **options: Any,
    ) -> list[list[Translation]]:
        """As `lingvo_moe.tasks.model.Model.translate`.

        Args:
            batch_tokens: source tokens that are decoded together, padding included.
            **options: those that the attribute `options` names.
        """
        check_texts("sentences", sentences)
        sentences = list(sentences)  # indices of a pandas.Series are labels
        search = self.search_with({**options, "n_best": n_best})
        languages = self._check(to, source_language)
        # An export whose translations begin with a tag has no option target_prefix.
        tags = int("target_prefix" not in self._names)

        def penalty(length):
            return search.filled(self.fitted, to).penalty(tags + length) if self._names else length

        split = self._split(sentences, search, sentence_language(source_language, to, self.pairs))
        counts = {i: left_out(parts, self.part_pieces) for i, parts in enumerate(split, 1)}
        if any(counts.values()):
            warn(cut_warning({i: count for i, count in counts.items() if count}))
        after_first = dataclasses.replace(search, target_prefix="")

        def translate(texts, later):
            return self._translate(texts, languages, after_first if later else search)

        found = translate_parts(split, batch_tokens, translate, progress)
        return translations_of(sentences, to, self._forms, split, found, penalty, n_best)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
        batch_tokens: int = 2048,
    ) -> list[Score]:
        """As `lingvo_moe.tasks.model.Model.score`; not for an export without options.

        Args:
            batch_tokens: tokens that are scored together, padding included.
        """
        check_parallel(sources, targets)
        sources, targets = list(sources), list(targets)
        languages = self._check(to, source_language)
        if not self.scores:
            raise ValueError(f"score {self._cure}")
        scores: list[Score] = [Score(0.0, (), ())] * len(sources)
        counts = self.count_pieces(sources), self.count_target_pieces(targets)
        for side, lengths in zip(("source", "target"), counts, strict=True):
            check_lengths(side, lengths, self.max_pieces)
        for batch in batches(list(map(max, *counts)), batch_tokens):
            texts = [[side[i] for i in batch] for side in (sources, targets)]
            output = client.call(self._model.score, *texts, **languages)
            tokens, log_probs = (output[name].numpy() for name in ("tokens", "log_probs"))
            for i, row, values in zip(batch, tokens, log_probs, strict=True):
                pieces = tuple(token.decode() for token in row if token)
                values = tuple(map(float, values[: len(pieces)]))
                scores[i] = Score(sum(values), pieces, values)
        return scores

    def search_with(self, options: Mapping[str, Any]) -> BeamSearchParams:
        """The params of a search with these options.

        Raises:
            ValueError: one that does not exist, does not fit, or is not in the export.
        """
        search = self._search.with_options({"n_best": 1, **options})
        for name in options:
            if name not in self.options:
                raise ValueError(f"{name} {self._cure}")
        if search.n_best > self.n_best:
            cure = "give a smaller value." if self._names else f"a larger one {self._cure}"
            raise ValueError(f"n_best must be 1 to {self.n_best}, got {search.n_best}; {cure}")
        if search.source_prefix:
            (tokens,) = self.count_pieces([search.source_prefix])
            check_source_prefix(tokens, self.part_pieces)
        if search.target_prefix:
            (tokens,) = self.count_target_pieces([search.target_prefix.rstrip()])
            check_target_prefix(tokens, self.part_pieces)
        return search

    @property
    def _cure(self):
        """The end of an error about an option."""
        if self._names:
            return (
                f"is no option of this export; leave it out, or translate with the logdir. The "
                f"options are {', '.join(self.options)}."
            )
        return "is no option of this export, because its model has decoding.rules; use the logdir."

    def _split(self, sentences, search, language="en"):
        """The parts of each sentence."""

        def count(texts):
            return self.count_pieces([search.source_prefix + text for text in texts])

        return split_texts(sentences, language, self.part_pieces, count)

    def _translate(self, sentences, languages, search):
        """The N translations of each sentence of a batch."""
        if self._is_fixed(search):
            output = client.call(self._model.translate, sentences, **languages)
        else:
            numbers = numbers_of(search)
            texts = {name: getattr(search, name) for name in _TEXTS if name in self._names}
            options = numbers | {
                name: client.tf.constant(text or [], client.tf.string)
                if isinstance(text, tuple)
                else text
                for name, text in texts.items()
            }
            output = client.call(self._model.translate_with, sentences, **languages, **options)
        return parts_of(client.plain(output), search.n_best, search.tokens)

    def _is_fixed(self, search):
        """Whether the graph without options, which is faster, gives the same result."""
        fixed = self._search
        if search.n_best > fixed.n_best:
            return False
        return dataclasses.replace(search, n_best=fixed.n_best) == fixed

    def _check(self, to, source_language):
        """The language arguments of the SavedModel."""
        check_target_language(to, self.languages)
        if self.needs_source_language and source_language is None:
            raise ValueError(
                "This model routes by source language; give "
                f"source_language. It was trained on {', '.join(self.pairs)}."
            )
        check_source_language(source_language, self._sources)
        given = {"target_language": to, "source_language": source_language}
        return {name: client.tf.constant(given[name]) for name in self._wanted}


def _counts(count, texts):
    """The numbers of pieces, of no texts too, by a function of a model."""
    return count(list(texts) or [""]).numpy().tolist()[: len(texts)]
