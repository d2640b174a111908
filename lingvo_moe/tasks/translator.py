"""Text in, text out: tokenisation, batching and decoding around a compiled beam search."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from lingvo_moe.core.lines import cut_warning, is_blank, one_line
from lingvo_moe.data.batching import padded_batches
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.constraints import join_lattices
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import TranslationParams

BLOCK = 4096  # sentences that are sorted by length together
_NOT_EXPORTED = ("source_prefix", "tokens")
_SPACE = "▁"  # of SentencePiece

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B], request) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray, Request], BeamOutput]


def max_source_length(params: TranslationParams) -> int:
    """Tokens of the longest sentence that is translated whole, language tag and EOS included.

    This is far longer than the rows of training; longer sentences are cut.
    """
    return 4 * params.input.source_length


def request_of(decoding: BeamSearchParams, target: Vocabulary, longest: int) -> Request:
    """How to search, with the texts of the target side in ids.

    A space at the end of the prefix is left out: the next piece begins with it.

    Args:
        decoding: how to search.
        target: the vocabulary.
        longest: tokens of a prefix, at most.

    Raises:
        ValueError: the prefix is longer.
    """
    (prefix,) = target.encode([decoding.target_prefix.rstrip()])
    if len(prefix) > longest:
        raise ValueError(
            f"target_prefix has {len(prefix):,} tokens, and at most {longest:,} are allowed; give "
            f"fewer words."
        )
    forbidden = join_lattices(map(target.spellings, decoding.forbidden))
    return Request(decoding, tuple(prefix), forbidden)


def export_request(model_dir: ModelDir) -> Request:
    """How an export searches: as the params say.

    Raises:
        ValueError: they have an option that an export does not carry out.
    """
    decoding = model_dir.params.decoding
    for name in _NOT_EXPORTED:
        if getattr(decoding, name):
            raise ValueError(
                f"decoding.{name} works with a logdir, not in an export; leave it out of --set."
            )
    longest = max_source_length(model_dir.params)
    return request_of(decoding, model_dir.vocabulary("target"), longest)


class Token(NamedTuple):
    """A token of a translation.

    Attributes:
        text: the piece, with "▁" for a space; "</s>" for EOS.
        log_prob: log P in nats, given the source and the tokens before.
        source: the place in Translation.source of the piece that it looked at most.
    """

    text: str
    log_prob: float
    source: int


class Translation(NamedTuple):
    """text, one line, and its length-normalised log-probability.

    Where they were asked for, also its tokens and the pieces of its source.
    """

    text: str
    score: float
    tokens: tuple[Token, ...] = ()
    source: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its fields for JSON, which has no infinity: `score` is null where there was none."""
        fields = {"text": self.text, "score": self.score if math.isfinite(self.score) else None}
        tokens = [token._asdict() for token in self.tokens]
        return fields | ({"tokens": tokens, "source": list(self.source)} if tokens else {})

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word), counted from 0: which words the tokens of a word looked at.

        Words are what spaces separate.
        """
        written = self.tokens[:-1]  # without EOS
        read = _word_numbers(self.source)
        words = _word_numbers([token.text for token in written])
        return sorted(
            {(read[token.source], word) for token, word in zip(written, words, strict=True)}
        )


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece is in."""
    starts = [i > 0 and piece.startswith(_SPACE) for i, piece in enumerate(pieces)]
    return list(itertools.accumulate(starts))


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates sentences with one model.

    Attributes:
        translate_ids: decodes a batch, such as a runtime's `translate`.
        source: source vocabulary.
        target: target vocabulary.
        tag: language -> id of its tag, such as `ModelDir.tag`.
        task_id: (source language or None, target language) -> the task that a router by task goes
            by, such as `TranslationTask.task_id`.
        max_source_length: of longer sentences, in tokens, the rest is left out, with a warning.
        decoding: how to search.
        batch_size: sentences decoded together.
    """

    translate_ids: TranslateFn
    source: Vocabulary
    target: Vocabulary
    tag: Callable[[str], int]
    task_id: Callable[[str | None, str], int]
    max_source_length: int
    decoding: BeamSearchParams
    batch_size: int = 64

    @staticmethod
    def of(model_dir: ModelDir, translate_ids: TranslateFn, batch_size: int = 64) -> "Translator":
        """The translator of a logdir whose weights translate_ids uses."""
        return Translator(
            translate_ids,
            model_dir.vocabulary("source"),
            model_dir.vocabulary("target"),
            model_dir.tag,
            model_dir.task.task_id,
            max_source_length(model_dir.params),
            model_dir.params.decoding,
            batch_size,
        )

    def __call__(
        self,
        sentences: Sequence[str],
        target_language: str,
        source_language: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Translates; sentences that show nothing, see `is_blank`, give empty translations.

        Args:
            sentences: in any languages the model knows.
            target_language: which language to translate into.
            source_language: which language all sentences are in; only models whose router goes by
                it need it, others pass over it.
            progress: called with the number of sentences done since the last call.
            warn: takes a line about sentences that are too long, before they are translated.
            first_line: number of the first sentence, for that line.

        Returns:
            For each sentence its n best translations, best first. Where the search found fewer,
            the last are empty with score -inf.

        Raises:
            ValueError: the model does not know the target language; or it needs the source language
                and gets none, or one that it was not trained on; or a prefix is too long.
        """
        tag = self.tag(target_language)
        task = self.task_id(source_language, target_language)
        request = self.request
        results = [[Translation("", 0.0)] * self.decoding.n_best for _ in sentences]
        filled = [i for i, text in enumerate(sentences) if not is_blank(text)]
        progress(len(sentences) - len(filled))
        pieces = self.pieces([sentences[i] for i in filled])
        room = self.max_pieces
        left_out = {
            i + first_line: len(ids) - room
            for i, ids in zip(filled, pieces, strict=True)
            if len(ids) > room
        }
        if left_out:
            warn(cut_warning(left_out))
        encoded = [[tag, *ids[:room], EOS] for ids in pieces]
        for indices, ids, lengths in padded_batches(encoded, self.batch_size):
            output = self.translate_ids(ids, lengths, np.full_like(lengths, task), request)
            read = [encoded[i][1:-1] for i in indices]
            for index, translations in zip(indices, self._translations(output, read), strict=True):
                results[filled[index]] = translations
            progress(len(indices))
        return results

    def stream(
        self,
        sentences: Iterable[str],
        target_language: str,
        source_language: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        first_line: int = 1,
    ) -> Iterator[list[Translation]]:
        """Translates any number of sentences, in order: memory is that of BLOCK of them.

        Args:
            As those of a call; sentences are read as they are needed.

        Yields:
            The n best translations of each sentence.

        Raises:
            ValueError: as a call does, once it is reached.
        """
        left = iter(sentences)
        while block := list(itertools.islice(left, BLOCK)):
            yield from self(block, target_language, source_language, progress, warn, first_line)
            first_line += len(block)

    @functools.cached_property
    def request(self) -> Request:
        """How to search, in ids.

        Raises:
            ValueError: a prefix is too long.
        """
        (prefix,) = self.source.encode([self.decoding.source_prefix])
        if len(prefix) >= self.max_pieces:
            raise ValueError(
                f"source_prefix has {len(prefix):,} tokens, and the model reads {self.max_pieces:,}"
                f" of a sentence; give fewer words."
            )
        return request_of(self.decoding, self.target, self.max_pieces)

    @property
    def max_pieces(self) -> int:
        """How many pieces of a sentence are read."""
        return self.max_source_length - 2  # and the tag, and EOS

    def pieces(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of sentences behind the source prefix."""
        return self.source.encode([self.decoding.source_prefix + text for text in sentences])

    def _translations(self, output: BeamOutput, read: list[list[int]]) -> list[list[Translation]]:
        """The Translations of a batch whose sources have these ids."""
        ids, lengths, scores = (np.asarray(x) for x in (output.ids, output.lengths, output.scores))
        batch, n_best = lengths.shape
        rows = [(b, n) for b in range(batch) for n in range(n_best)]
        written = [ids[b, n, : lengths[b, n]].tolist() for b, n in rows]
        texts = self.target.decode([[i for i in one if i != EOS] for one in written])
        made = [
            Translation(one_line(text), float(scores[row]))
            for text, row in zip(texts, rows, strict=True)
        ]
        if output.log_probs is not None:
            log_probs, sources = np.asarray(output.log_probs), np.asarray(output.sources)
            made = [
                translation._replace(
                    source=tuple(self.source.pieces(read[row[0]])),
                    tokens=tuple(
                        Token(text, float(log_prob), int(place) - 1)  # without the tag
                        for text, log_prob, place in zip(
                            self.target.pieces(one), log_probs[row], sources[row], strict=False
                        )
                    ),
                )
                for translation, one, row in zip(made, written, rows, strict=True)
            ]
        return [made[b * n_best : (b + 1) * n_best] for b in range(batch)]
