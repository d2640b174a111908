"""Translates text: tokenisation, batching and decoding around a compiled beam search."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from lingvo_moe.config.fields import short_repr
from lingvo_moe.config.params import text_of
from lingvo_moe.data.packing import padded_batches
from lingvo_moe.data.sentences import Part, left_out, sentence_language, split_texts
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.constraints import join_lattices
from lingvo_moe.decoding.fitted import UNFITTED, Fitted
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.inference.parts import Token, TranslatedPart, Translation, translations_of
from lingvo_moe.system.lines import blocks, check_utf8, cut_warning, one_line
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams

BLOCK = 4096  # sentences that are sorted by length together
_NOT_EXPORTED = ("source_prefix", "target_prefix", "tokens", "rules")

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B], request) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray, Request], BeamOutput]


def check_texts(name: str, texts: Any) -> None:
    """Checks that an argument is a list of texts; a single text would be read letter by letter.
    Raises ValueError: it is not, or a text cannot be encoded."""
    if isinstance(texts, str) or not hasattr(texts, "__len__"):
        raise ValueError(f"{name} must be a list of texts, got {short_repr(texts)}.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a text, got {short_repr(text)}.")
        check_utf8(text, f"{name}[{i}]")


def max_pieces(params: TranslationParams) -> int:
    """Pieces of the longest text that a model reads as a whole: several times a training row."""
    return 4 * params.input.source_length - len(params.language_tags.in_front) - 1


def part_pieces(params: TranslationParams) -> int:
    """Pieces of the longest part of a text that is translated as a whole: a training row."""
    return params.input.source_length - len(params.language_tags.in_front) - 1


def check_prefix(name: str, tokens: int, most: int) -> None:
    """Raises ValueError if a source_prefix or a target_prefix has more than so many tokens."""
    if tokens > most:
        raise ValueError(
            f"{name} has {tokens:,} tokens, and at most {most:,} are allowed; give fewer words."
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

    Raises ValueError: the prefix is longer.
    """
    (prefix,) = target.encode([decoding.target_prefix.rstrip()])
    check_prefix("target_prefix", len(prefix), longest)
    forbidden = join_lattices(map(target.spellings, decoding.forbidden))
    return Request(decoding, tuple(prefix), forbidden, spaces=target.spaces)


def export_request(model_dir: ModelDir) -> Request:
    """How an export searches: as the params say. Raises ValueError: they have an option that an
    export does not carry out."""
    decoding = model_dir.params.decoding
    for name in _NOT_EXPORTED:
        if getattr(decoding, name):
            served = "logdir" if name == "rules" else "logdir or a SavedModel"
            default = text_of(getattr(BeamSearchParams(), name))
            raise ValueError(
                f"decoding.{name} cannot be set for an export; pass --set=decoding.{name}="
                f"{default}. Requests to a {served} can have it."
            )
    longest = part_pieces(model_dir.params)
    return request_of(decoding, model_dir.vocabulary("target"), longest)


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates sentences with one model."""

    translate_ids: TranslateFn  # decodes a batch, such as a runtime's `translate`
    source: Vocabulary  # source vocabulary
    target: Vocabulary  # target vocabulary
    # (source language or None, target language) -> ids in front of a sentence, such as
    # `ModelDir.prefix`
    prefix: Callable[[str | None, str], list[int]]
    # (source language or None, target language) -> the task that a router by task goes by, such as
    # `TranslationTask.task_id`
    task_id: Callable[[str | None, str], int]
    part_pieces: int  # largest number of pieces of what is translated as a whole
    decoding: BeamSearchParams  # how to search
    tags: int = 0  # number of language tags in front of a translation; the score counts them
    # target language -> form of its translations, such as `ModelDir.forms`
    forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fitted: Fitted = UNFITTED  # values of params of decoding that are FROM_DATA
    penalties: tuple[float, ...] = ()  # as of a Request
    pairs: Sequence[str] = ()  # the model's language pairs, such as "de-en"

    @staticmethod
    def of(model_dir: ModelDir, translate_ids: TranslateFn) -> "Translator":
        """The translator of a logdir whose weights translate_ids uses."""
        return Translator(
            translate_ids,
            model_dir.vocabulary("source"),
            model_dir.vocabulary("target"),
            model_dir.prefix,
            model_dir.task.task_id,
            part_pieces(model_dir.params),
            model_dir.params.decoding,
            int(model_dir.params.language_tags.on_target),
            model_dir.forms,
            model_dir.fitted,
            pairs=model_dir.translated_pairs,
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
        their tokens are what the model reads and writes. Texts of several sentences are translated
        sentence by sentence.

        Args:
            sentences: in any languages the model knows.
            target_language: the language to translate into.
            source_language: the language of all sentences; needed only by models that have its tag
                or route by it. Other models refuse a language that they do not know.
            progress: called with the number of sentences done since the last call.
            warn: takes a line about sentences that are too long, before they are translated.
            first_line: number of the first sentence, for that line.

        Returns for each sentence its n best translations, best first. If the search found fewer,
        the last are empty with score -inf. Raises ValueError: the model does not know a language;
        or it needs the source language and gets none, or one that it was not trained on; or a
        prefix is too long; or the sentences are not a list of texts.
        """
        check_texts("sentences", sentences)
        prefix = self.prefix(source_language, target_language)
        own = self.into(target_language)
        sentences = list(sentences)  # indices of a pandas.Series are labels
        task = self.task_id(source_language, target_language)
        language = sentence_language(source_language, target_language, self.pairs)
        split = self.split(sentences, language)
        progress(sum(not parts for parts in split))
        counts = {i: left_out(parts, self.part_pieces) for i, parts in enumerate(split, first_line)}
        if any(counts.values()):
            warn(cut_warning({i: count for i, count in counts.items() if count}))
        found: dict[tuple[int, int], list[TranslatedPart]] = {}
        for request, parts in own._by_request(split).items():
            encoded = [[*prefix, *ids, EOS] for _, ids in parts]
            for batch, ids, lengths in padded_batches(encoded, own.decoding.batch_tokens):
                output = self.translate_ids(ids, lengths, np.full_like(lengths, task), request)
                places, sources = zip(*(parts[i] for i in batch), strict=True)
                found |= dict(zip(places, own._found(output, sources), strict=True))
                progress(sum(number == 0 for _, number in places))
        penalty = None if self.penalties else own._penalty  # translation n is that of penalty n
        asked = sentences, target_language, self.forms
        return translations_of(*asked, split, found, penalty, own.request.count)

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

        Yields the n best translations of each sentence. Raises ValueError: as a call, when the
        sentence is reached.
        """
        for block in blocks(sentences, BLOCK):
            yield from self(block, target_language, source_language, progress, warn, first_line)
            first_line += len(block)

    def _penalty(self, length):
        return self.decoding.penalty(self.tags + length)

    @property
    def request(self) -> Request:
        """How to search, in ids. Raises ValueError: a prefix is too long."""
        # Before Python 3.12 a functools.cached_property of one translator locks those of others.
        if "_request" not in vars(self):
            vars(self)["_request"] = self._make_request()
        return vars(self)["_request"]

    def _make_request(self):
        (prefix,) = self.source.encode([self.decoding.source_prefix])
        check_prefix("source_prefix", len(prefix), self.part_pieces - 1)
        request = request_of(self.decoding, self.target, self.part_pieces)
        return dataclasses.replace(request, penalties=self.penalties)

    def split(self, sentences: Sequence[str], language: str = "en") -> list[list[Part]]:
        """What is translated as a whole of each sentence; see `split_texts`."""

        def count(texts):
            return list(map(len, self._encode(texts)))

        return split_texts(sentences, language, self.part_pieces, count)

    def _encode(self, texts):
        return encode_sources(self.source, self.decoding, texts)

    def _by_request(self, split):
        """Request -> ((place, number of the part), its ids); only first parts have a prefix."""
        groups: dict[Request, list[tuple[tuple[int, int], list[int]]]] = {}
        later = dataclasses.replace(self.request, prefix=())
        places = [(i, n) for i, parts in enumerate(split) for n in range(len(parts))]
        encoded = self._encode([split[i][n].text for i, n in places])
        for place, ids in zip(places, encoded, strict=True):
            request = later if place[1] else self.request
            groups.setdefault(request, []).append((place, ids[: self.part_pieces]))
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
