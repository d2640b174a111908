"""A trained model in memory: translates, scores, and shows the experts of tokens."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.inference.scorer import Score, Scorer
from lingvo_moe.inference.translator import Translation, Translator, max_pieces
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.nn.one_process import OneProcess
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import RuntimeFn


class RoutedToken(NamedTuple):
    """A piece of a sentence or of its translation.

    Attributes:
        text: the piece, with "▁" for a space.
        log_prob: of a translation, log P given the source and the pieces before; else None.
        experts: MoE layer -> (expert, weight of its output); for a target piece those of the
            decoder step that predicts it.
    """

    text: str
    log_prob: float | None
    experts: dict[str, list[tuple[int, float]]]


class Explanation(NamedTuple):
    """The pieces of the source, with the language tag and EOS, and of the target."""

    source: list[RoutedToken]
    target: list[RoutedToken]

    def as_json(self) -> dict[str, Any]:
        """Fields for JSON: those of `Score`, `source`, and `experts` of each token."""
        return {
            "log_prob": sum(token.log_prob or 0.0 for token in self.target),
            "tokens": [token._asdict() for token in self.target],
            "source": [{"text": one.text, "experts": one.experts} for one in self.source],
        }


class Model(OneProcess):
    """A trained model in memory, for the process that loaded it.

    Attributes:
        logdir: where it comes from.
        step: its checkpoint's step.
        make_runtime: what runs it.
        languages: those that it translates into, sorted.
        pairs: the language pairs that it was trained on, such as "de-en".
        needs_source_language: whether the source language must be given.
        scorer: gives log P of translations.
        max_pieces: longer sentences are not scored by the server.
        options: names of the options of a request.
    """

    options: Sequence[str] = [field.name for field in dataclasses.fields(BeamSearchParams)]

    def __init__(self, logdir: ModelDir, make_runtime: RuntimeFn, step: int | None = None):
        """Loads a checkpoint.

        Args:
            logdir: its directory.
            make_runtime: makes its runtime.
            step: of the checkpoint; None for the best on dev.

        Raises:
            ValueError, OSError: there is no such checkpoint, or it is damaged.
        """
        super().__init__(logdir.path)
        self.logdir, self.make_runtime = logdir, make_runtime
        self._runtime = make_runtime(logdir.task, None)
        self._translator, self.step = load_translator(logdir, self._runtime, step)
        self.scorer = Scorer(logdir, self._runtime.score, logdir.params.decoding.batch_tokens)
        self.languages: Sequence[str] = sorted(logdir.tags)
        self.pairs: Sequence[str] = logdir.translated_pairs
        self.needs_source_language = logdir.task.needs_source_language
        self.max_pieces = max_pieces(logdir.params)

    @property
    def params(self) -> TranslationParams:
        """The params that it was trained with."""
        return self.logdir.params

    def translator(self, **decoding: Any) -> Translator:
        """A translator with other options than the model's.

        Args:
            **decoding: as for `translate`.

        Raises:
            ValueError: an option that does not exist or does not fit.
            RuntimeError: this process is a fork of the one that loaded the model.
        """
        self.check_process()
        search = self.params.decoding.with_options(decoding)
        translator = dataclasses.replace(self._translator, decoding=search)
        assert translator.request  # or a ValueError
        return translator

    def translate(
        self,
        sentences: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
        n_best: int = 1,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        **decoding: Any,
    ) -> list[list[Translation]]:
        """Translates sentences. Each translation is independent of the other sentences.

        Args:
            sentences: in any languages the model knows.
            to: the language to translate into.
            source_language: the language of all sentences; needed only by models that route by it.
            n_best: N.
            progress: called with the number of sentences done since the last call.
            warn: takes a line about sentences that are too long.
            **decoding: fields of BeamSearchParams that replace the model's, such as beam_size=8 or
                target_prefix="The". The first call that needs another graph takes seconds longer.

        Returns:
            For each sentence its N best translations, best first: texts and scores, and with
            tokens=True their tokens. A sentence without words is copied, and one in capitals has
            translations in capitals. If the search found fewer than N, the last are empty with
            score -inf.

        Raises:
            ValueError: an option that does not exist or does not fit; the model does not know the
                language, or needs the source language.
            RuntimeError: as for `translator`.
        """
        translator = self.translator(n_best=n_best, **decoding)
        return translator(sentences, to, source_language, progress, warn)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
    ) -> list[Score]:
        """Log-probabilities of given translations, under teacher forcing.

        Args:
            sources: sentences to translate.
            targets: their translations, as many, in the language `to`.
            to: the language of the targets.
            source_language: of the sources; needed only by models that route by it.

        Returns:
            For each pair log P in nats, and that of every token.

        Raises:
            ValueError: not as many targets as sources, or as in `translate`.
            RuntimeError: as for `translator`.
        """
        self.check_process()
        return self.scorer(sources, targets, to, source_language)

    def count_pieces(self, sentences: Sequence[str]) -> list[int]:
        """The number of pieces of the source vocabulary of each sentence."""
        return list(map(len, self.logdir.vocabulary("source").encode(sentences)))

    def count_target_pieces(self, translations: Sequence[str]) -> list[int]:
        """The number of pieces of the target vocabulary of each translation."""
        return list(map(len, self.logdir.vocabulary("target").encode(translations)))

    def explain(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str = "en",
        *,
        source_language: str | None = None,
    ) -> list[Explanation]:
        """The log-probability and the experts of each token of given translations.

        Args:
            sources: sentences of at most max_pieces.
            targets: their translations, as many.
            to: the language of the targets.
            source_language: of the sources; needed only by models that route by it.

        Raises:
            ValueError: as for `translate`.
            RuntimeError: as for `translator`.
        """
        self.check_process()
        vocabulary = self.logdir.vocabulary("source")
        unread = int(self.logdir.params.language_tags.on_target)  # tags for the decoder
        found: dict[int, Explanation] = {}
        for indices, batch in self.scorer.given_batches(sources, targets, to, source_language):
            routes = self._runtime.routes(*batch)
            for row, (index, score) in enumerate(
                zip(indices, self.scorer.score_batch(batch), strict=True)
            ):
                ids = batch.source_ids[row, unread : batch.source_lengths[row]].tolist()
                read = vocabulary.pieces(ids)
                found[index] = Explanation(
                    _tokens(read, [None] * len(read), routes, "encoder", row),
                    _tokens(score.tokens, score.token_log_probs, routes, "decoder", row),
                )
        return [found[index] for index in range(len(found))]


def _tokens(pieces, log_probs, routes, side, row):
    """The RoutedTokens of one side of a row of `TranslationTask.routes`."""
    tables = {
        layer: [np.asarray(table)[row] for table in tables]
        for layer, tables in routes.items()
        if layer.startswith(side)
    }

    def experts(place):
        chosen = {layer: zip(e[place], w[place], strict=True) for layer, (e, w) in tables.items()}
        return {
            layer: [(int(expert), float(weight)) for expert, weight in choices if weight]
            for layer, choices in chosen.items()
        }

    return [
        RoutedToken(piece, log_prob, experts(place))
        for place, (piece, log_prob) in enumerate(zip(pieces, log_probs, strict=True))
    ]
