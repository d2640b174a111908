"""Translates text: tokenisation, batching and decoding around a compiled beam search."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from lingvo_moe.core.fields import short_repr
from lingvo_moe.core.lines import check_utf8, cut_warning, one_line
from lingvo_moe.data.batching import padded_batches
from lingvo_moe.data.sentences import join_sentences, split_into_parts
from lingvo_moe.data.surface import as_read, as_written, copy_of, wordless
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.constraints import join_lattices
from lingvo_moe.decoding.fitted import UNFITTED, Fitted
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.decoding.shortlist import Shortlist
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.shortlist import load_shortlist

BLOCK = 4096  # sentences that are sorted by length together
_NOT_EXPORTED = ("source_prefix", "tokens", "split_long", "shortlist")
_SPACE, _EOS = "▁", "</s>"  # SentencePiece's

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B], request) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray, Request], BeamOutput]


def check_texts(name: str, texts: Any) -> None:
    """Checks that an argument is a list of texts; a single text would be read letter by letter.

    Raises:
        ValueError: it is not, or a text cannot be encoded.
    """
    if isinstance(texts, str) or not hasattr(texts, "__len__"):
        raise ValueError(f"{name} must be a list of texts, got {short_repr(texts)}.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a text, got {short_repr(text)}.")
        check_utf8(text, f"{name}[{i}]")


def max_source_length(params: TranslationParams) -> int:
    """Tokens of the longest sentence that is not cut, with language tags and EOS.

    It is several times the length of training rows.
    """
    return 4 * params.input.source_length


def max_pieces(params: TranslationParams) -> int:
    """The same without language tags and EOS."""
    return max_source_length(params) - len(params.language_tags.in_front) - 1


def check_source_prefix(tokens: int, room: int) -> None:
    """Checks that a source_prefix leaves room for a sentence.

    Args:
        tokens: of the prefix.
        room: tokens that the model reads, at most.

    Raises:
        ValueError: it leaves none.
    """
    if tokens >= room:
        raise ValueError(
            f"source_prefix has {tokens:,} tokens, and the model reads {room:,} of a sentence; "
            f"give fewer words."
        )


def check_target_prefix(tokens: int, room: int) -> None:
    """Checks the number of tokens of a target_prefix.

    Raises:
        ValueError: it is larger than `room`.
    """
    if tokens > room:
        raise ValueError(
            f"target_prefix has {tokens:,} tokens, and at most {room:,} are allowed; give fewer "
            f"words."
        )


def encode_sources(
    source: Vocabulary, decoding: BeamSearchParams, texts: Sequence[str]
) -> list[list[int]]:
    """The ids of texts behind the source prefix, without language tags and EOS."""
    return source.encode([decoding.source_prefix + text for text in texts])


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
    check_target_prefix(len(prefix), longest)
    forbidden = join_lattices(map(target.spellings, decoding.forbidden))
    return Request(decoding, tuple(prefix), forbidden, spaces=target.spaces)


def export_request(model_dir: ModelDir) -> Request:
    """How an export searches: as the params say.

    Raises:
        ValueError: they have an option that an export does not carry out.
    """
    decoding = model_dir.params.decoding
    for name in _NOT_EXPORTED:
        if getattr(decoding, name):
            served = "a logdir" if name == "shortlist" else "a logdir or a SavedModel"
            raise ValueError(
                f"decoding.{name} cannot be set for an export; leave it out of --set. Requests to "
                f"{served} can have it."
            )
    longest = max_source_length(model_dir.params)
    return request_of(decoding, model_dir.vocabulary("target"), longest)


class Token(NamedTuple):
    """A token of a translation.

    Attributes:
        text: the piece, with "▁" for a space; "</s>" for EOS.
        log_prob: log P in nats, given the source and the tokens before.
        source: the index in Translation.source of the piece with the largest attention; -1 if there
            is none.
    """

    text: str
    log_prob: float
    source: int


class Translation(NamedTuple):
    """text, one line, and its length-normalised log-probability.

    With the option `tokens` also its tokens and the pieces of its source.
    """

    text: str
    score: float
    tokens: tuple[Token, ...] = ()
    source: tuple[str, ...] = ()

    def as_json(self, tokens: bool = False) -> dict[str, Any]:
        """Its fields for JSON; `score` is null if it is not finite, which JSON cannot hold.

        Args:
            tokens: whether to include `tokens` and `source` also if they are empty.
        """
        fields = {"text": self.text, "score": self.score if math.isfinite(self.score) else None}
        if not (tokens or self.tokens):
            return fields
        each = [token._asdict() for token in self.tokens]
        return fields | {"tokens": each, "source": list(self.source)}

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word), counted from 0: the words aligned by attention.

        Words are what spaces separate.
        """
        written = [token for token in self.tokens if token.text != _EOS and token.source >= 0]
        read = _word_numbers(self.source)
        words = _word_numbers([token.text for token in written])
        return sorted(
            {(read[token.source], word) for token, word in zip(written, words, strict=True)}
        )


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece is in; spaces are in the word that follows."""
    numbers, word, after_space = [], -1, True
    for piece in pieces:
        if not piece.strip(_SPACE):
            after_space = True
            numbers.append(word + 1)
            continue
        word += after_space or piece.startswith(_SPACE)
        after_space = piece.endswith(_SPACE)
        numbers.append(word)
    return [min(number, max(word, 0)) for number in numbers]  # no word follows the last spaces


class EncodedSource(NamedTuple):
    """What is read of a sentence.

    Attributes:
        parts: ids of what is translated together; [] for a sentence without words.
        left_out: how many pieces are not read.
    """

    parts: list[list[int]]
    left_out: int


class TranslatedPart(NamedTuple):
    """A translation of a part of a sentence and its number of tokens, with EOS; 0 if not found."""

    translation: Translation
    length: int


def merge_parts(parts: Sequence[TranslatedPart], penalty: Callable[[int], float]) -> Translation:
    """The translation of a sentence from those of its parts; its score is that of all tokens.

    Args:
        parts: in order.
        penalty: number of tokens -> the divisor of log P.
    """
    translations = [part.translation for part in parts]
    if len(parts) == 1:
        return translations[0]
    if not all(part.length for part in parts):  # not found
        return Translation("", -math.inf)
    log_prob = sum(part.translation.score * penalty(part.length) for part in parts)
    starts = itertools.accumulate((len(t.source) for t in translations), initial=0)
    tokens = (
        token._replace(source=start + token.source) if token.source >= 0 else token
        for translation, start in zip(translations, starts, strict=False)
        for token in translation.tokens
    )
    return Translation(
        join_sentences(t.text for t in translations),
        log_prob / penalty(sum(part.length for part in parts)),
        tuple(tokens),
        tuple(piece for t in translations for piece in t.source),
    )


def merge_hypotheses(
    parts: Sequence[Sequence[TranslatedPart]], penalty: Callable[[int], float]
) -> list[Translation]:
    """The N translations of a sentence, best first, from the N hypotheses of each of its parts.

    Candidate k joins, from each part, the hypothesis with the k-th largest log P; a part with fewer
    than k gives its last one. Then the candidates are sorted by score.

    Args:
        parts: in order; each has N hypotheses.
        penalty: as of `merge_parts`.
    """
    if len(parts) == 1:
        return [hypothesis.translation for hypothesis in parts[0]]
    found = [
        sorted(
            (one for one in hypotheses if one.length),
            key=lambda one: -one.translation.score * penalty(one.length),
        )
        for hypotheses in parts
    ]
    count = max(map(len, found)) if all(found) else 0
    ranked = [[one[min(k, len(one) - 1)] for one in found] for k in range(count)]
    merged = sorted((merge_parts(one, penalty) for one in ranked), key=lambda one: -one.score)
    return [*merged, *[Translation("", -math.inf)] * (len(parts[0]) - count)]


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates sentences with one model.

    Attributes:
        translate_ids: decodes a batch, such as a runtime's `translate`.
        source: source vocabulary.
        target: target vocabulary.
        prefix: (source language or None, target language) -> ids in front of a sentence, such as
            `ModelDir.prefix`.
        task_id: (source language or None, target language) -> the task that a router by task goes
            by, such as `TranslationTask.task_id`.
        max_pieces: largest number of pieces; longer sentences are split or cut.
        decoding: how to search.
        shortlist: gives the model's Shortlist, always the same object; None if there is none.
        tags: number of language tags in front of a translation; the score counts them.
        forms: target language -> form of its translations, such as `ModelDir.forms`.
        fitted: values of params of decoding that are FROM_DATA.
        penalties: as of a Request.
    """

    translate_ids: TranslateFn
    source: Vocabulary
    target: Vocabulary
    prefix: Callable[[str | None, str], list[int]]
    task_id: Callable[[str | None, str], int]
    max_pieces: int
    decoding: BeamSearchParams
    shortlist: Callable[[], Shortlist] | None = None
    tags: int = 0
    forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fitted: Fitted = UNFITTED
    penalties: tuple[float, ...] = ()

    @staticmethod
    def of(model_dir: ModelDir, translate_ids: TranslateFn) -> "Translator":
        """The translator of a logdir whose weights translate_ids uses."""
        return Translator(
            translate_ids,
            model_dir.vocabulary("source"),
            model_dir.vocabulary("target"),
            model_dir.prefix,
            model_dir.task.task_id,
            max_pieces(model_dir.params),
            model_dir.params.decoding,
            functools.cache(lambda: load_shortlist(model_dir)),
            int(model_dir.params.language_tags.on_target),
            model_dir.forms,
            model_dir.fitted,
        )

    def into(self, language: str) -> "Translator":
        """The same, with numbers of a target language for params that are FROM_DATA."""
        decoding = self.decoding.filled(self.fitted, language)
        if decoding == self.decoding:
            return self
        made = dataclasses.replace(self, decoding=decoding)
        vars(made)["_request"] = dataclasses.replace(self.request, params=decoding)
        return made

    def __call__(
        self,
        sentences: Sequence[str],
        target_language: str,
        source_language: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Translates sentences.

        Those without words (see `wordless`) are copied, with score 0 and without tokens. Those in
        capitals (see `shouted`) are translated in lower case, and the result is put in capitals;
        their tokens are what the model reads and writes.

        Args:
            sentences: in any languages the model knows.
            target_language: the language to translate into.
            source_language: the language of all sentences; needed only by models that have its tag
                or route by it. Other models refuse a language that they do not know.
            progress: called with the number of sentences done since the last call.
            warn: takes a line about sentences that are too long, before they are translated.
            first_line: number of the first sentence, for that line.

        Returns:
            For each sentence its n best translations, best first. If the search found fewer, the
            last are empty with score -inf.

        Raises:
            ValueError: the model does not know a language; or it needs the source language
                and gets none, or one that it was not trained on; or a prefix is too long; or the
                sentences are not a list of texts.
        """
        check_texts("sentences", sentences)
        prefix = self.prefix(source_language, target_language)
        if (own := self.into(target_language)) is not self:
            given = sentences, target_language, source_language, progress, warn, first_line
            return own(*given)
        sentences = list(sentences)  # indices of a pandas.Series are labels
        task = self.task_id(source_language, target_language)
        if self.request.shortlist and prefix[0] not in self.request.shortlist.tags:
            raise ValueError(
                f"The shortlist of this model has no tokens of {target_language!r}: no training "
                f"data were counted. Leave decoding.shortlist out."
            )
        results = [[Translation(copy_of(text), 0.0)] * self.request.count for text in sentences]
        filled = [i for i, text in enumerate(sentences) if not wordless(text)]
        progress(len(sentences) - len(filled))
        read = self.read([sentences[i] for i in filled], source_language)
        left_out = {
            i + first_line: reading.left_out
            for i, reading in zip(filled, read, strict=True)
            if reading.left_out
        }
        if left_out:
            warn(cut_warning(left_out))
        found: dict[tuple[int, int], list[TranslatedPart]] = {}
        for request, parts in self._by_request(filled, read).items():
            encoded = [[*prefix, *ids, EOS] for _, ids in parts]
            for batch, ids, lengths in padded_batches(encoded, self.decoding.batch_tokens):
                output = self.translate_ids(ids, lengths, np.full_like(lengths, task), request)
                places, sources = zip(*(parts[i] for i in batch), strict=True)
                found |= dict(zip(places, self._found(output, sources), strict=True))
                progress(sum(number == 0 for _, number in places))
        for i, reading in zip(filled, read, strict=True):
            parts = [found[i, n] for n in range(len(reading.parts))]
            results[i] = [
                one._replace(text=as_written(one.text, sentences[i], target_language, self.forms))
                for one in merge_hypotheses(parts, self._penalty)
            ]
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
        """Translates any number of sentences in order, with the memory of BLOCK sentences.

        Args:
            As those of a call; sentences are read as they are needed.

        Yields:
            The n best translations of each sentence.

        Raises:
            ValueError: as a call, when the sentence is reached.
        """
        left = iter(sentences)
        while block := list(itertools.islice(left, BLOCK)):
            yield from self(block, target_language, source_language, progress, warn, first_line)
            first_line += len(block)

    def _penalty(self, length):
        return self.decoding.penalty(self.tags + length)

    @property
    def request(self) -> Request:
        """How to search, in ids.

        Raises:
            ValueError: a prefix is too long, or there is no shortlist.
        """
        # Before Python 3.12 a functools.cached_property of one translator locks those of others.
        if "_request" not in vars(self):
            vars(self)["_request"] = self._make_request()
        return vars(self)["_request"]

    def _make_request(self):
        (prefix,) = self.source.encode([self.decoding.source_prefix])
        check_source_prefix(len(prefix), self.max_pieces)
        request = request_of(self.decoding, self.target, self.max_pieces)
        request = dataclasses.replace(request, penalties=self.penalties)
        if not (self.decoding.shortlist and self.shortlist):
            return request
        return dataclasses.replace(request, shortlist=self.shortlist())

    def read(
        self, sentences: Sequence[str], source_language: str | None = None
    ) -> list[EncodedSource]:
        """What is read of each sentence."""
        texts = [as_read(text, source_language) for text in sentences]
        return [
            self._reading(text, ids) if not wordless(text) else EncodedSource([], 0)
            for text, ids in zip(texts, self._encode(texts), strict=True)
        ]

    def _encode(self, texts):
        return encode_sources(self.source, self.decoding, texts)

    def _reading(self, text, ids):
        room, parts = self.max_pieces, [ids]
        if len(ids) > room and self.decoding.split_long:
            prefix = self.decoding.source_prefix
            texts = split_into_parts(text, prefix, room, self._count)
            parts = self._encode(texts)
        return EncodedSource(
            [part[:room] for part in parts], sum(max(0, len(p) - room) for p in parts)
        )

    def _count(self, texts):
        return [len(ids) for ids in self.source.encode(texts)]

    def _by_request(self, places, read):
        """Request -> ((place, number of the part), its ids); only first parts have a prefix."""
        groups: dict[Request, list[tuple[tuple[int, int], list[int]]]] = {}
        later = dataclasses.replace(self.request, prefix=())
        for place, reading in zip(places, read, strict=True):
            for number, ids in enumerate(reading.parts):
                request = later if number else self.request
                groups.setdefault(request, []).append(((place, number), ids))
        return groups

    def _found(self, output: BeamOutput, read: Sequence[list[int]]) -> list[list[TranslatedPart]]:
        """The translations of a batch whose sources have these ids."""
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
        found = [TranslatedPart(t, len(one)) for t, one in zip(made, written, strict=True)]
        return [found[b * n_best : (b + 1) * n_best] for b in range(batch)]
