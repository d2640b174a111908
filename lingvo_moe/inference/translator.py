"""Translates with a model in memory: texts to ids, and ids of a compiled beam search to texts."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from lingvo_moe.config.params import text_of
from lingvo_moe.data.packing import padded
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.inference.parts import Token, TranslatedPart, Translation
from lingvo_moe.inference.texts import TextTranslator
from lingvo_moe.system.lines import one_line
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.params import TranslationParams

_NOT_EXPORTED = ("source_prefix", "target_prefix", "tokens")

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B], request) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray, Request], BeamOutput]


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
    return Request(decoding, tuple(prefix), spaces=target.spaces)


def export_request(model_dir: ModelDir) -> Request:
    """How an export searches: as the params say. Raises ValueError: they have an option that an
    export does not carry out."""
    decoding = model_dir.params.decoding
    for name in _NOT_EXPORTED:
        if getattr(decoding, name):
            default = text_of(getattr(BeamSearchParams(), name))
            raise ValueError(
                f"decoding.{name} cannot be set for an export; pass --set=decoding.{name}="
                f"{default}. Requests can have it."
            )
    longest = part_pieces(model_dir.params)
    return request_of(decoding, model_dir.vocabulary("target"), longest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translator(TextTranslator):
    """Translates with one model in memory."""

    translate_ids: TranslateFn  # decodes a batch, such as a runtime's `translate`
    source: Vocabulary  # source vocabulary
    target: Vocabulary  # target vocabulary
    # (source language or None, target language) -> ids in front of a sentence, such as
    # `ModelDir.prefix`
    prefix: Callable[[str | None, str], list[int]]
    # (source language or None, target language) -> the task that a router by task goes by, such as
    # `TranslationTask.task_id`
    task_id: Callable[[str | None, str], int]

    @staticmethod
    def of(model_dir: ModelDir, translate_ids: TranslateFn) -> "Translator":
        """The translator of a logdir whose weights translate_ids uses."""
        params = model_dir.params
        return Translator(
            translate_ids=translate_ids,
            source=model_dir.vocabulary("source"),
            target=model_dir.vocabulary("target"),
            prefix=model_dir.prefix,
            task_id=model_dir.task.task_id,
            part_pieces=part_pieces(params),
            decoding=params.decoding,
            added=len(params.language_tags.in_front) + 1,  # and EOS
            tags=int(params.language_tags.on_target),
            fitted=model_dir.fitted,
            pairs=model_dir.translated_pairs,
        )

    def asked(self, target_language, source_language):
        """Ids in front of each text, the task, and the request with the language's numbers."""
        prefix = self.prefix(source_language, target_language)
        search = self.decoding.filled(self.fitted, target_language)
        request = dataclasses.replace(self.request, params=search)
        return prefix, self.task_id(source_language, target_language), request

    def count(self, texts):
        """See TextTranslator."""
        return list(map(len, encode_sources(self.source, self.decoding, texts)))

    def run(self, texts, asked, first):
        """See TextTranslator."""
        prefix, task, request = asked
        request = request if first else dataclasses.replace(request, prefix=())
        encoded = encode_sources(self.source, self.decoding, texts)
        read = [ids[: self.part_pieces] for ids in encoded]
        ids, lengths = padded([[*prefix, *one, EOS] for one in read])
        output = self.translate_ids(ids, lengths, np.full_like(lengths, task), request)
        return self._found(output, read)

    @property
    def request(self) -> Request:
        """How to search, in ids. Raises ValueError: a prefix is too long."""
        # Before Python 3.12 a functools.cached_property of one translator locks those of others.
        if "_request" not in vars(self):
            (prefix,) = self.source.encode([self.decoding.source_prefix])
            check_prefix("source_prefix", len(prefix), self.part_pieces // 2)
            request = request_of(self.decoding, self.target, self.part_pieces)
            vars(self)["_request"] = dataclasses.replace(request, penalties=self.penalties)
        return vars(self)["_request"]

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
