"""A loaded model with limits for requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lingvo_moe.data.sentences import left_out
from lingvo_moe.server.params import ServerParams

if TYPE_CHECKING:  # a server starts before TensorFlow is imported
    from lingvo_moe.inference.translator import Translation
    from lingvo_moe.jobs.model import Model
    from lingvo_moe.serving.exported import Exported

_NO_OPTIONS = ("batch_tokens", "separate_caches_from")
_TAG_AND_EOS = 2


class TooLong(ValueError):
    """The options allow longer translations than the server does."""


class Size(NamedTuple):
    """The size of a sentence, or of all its parts together if it is split."""

    pieces: int  # number of pieces that are read
    left_out: int  # number of pieces that are not
    longest: int  # number of tokens of its longest translation

    @property
    def tokens(self) -> int:
        """Its share of a batch: the pieces, or half of the longest translation if that is more."""
        return max(self.pieces, self.longest // 2)


class Served:
    """A model that is served: that of a logdir, or an export.

    Attributes:
        languages, pairs, needs_source_language, max_pieces: as of the loaded model.
        direction: (source language, target language) of its first pair.
        n_best: largest number of translations of a sentence.
        options: names of the options of a request.
        score: that of the loaded model.
        explain: likewise; None if it has none.
    """

    def __init__(self, loaded: Model | Exported, limits: ServerParams):
        """Keeps the model and the limits of requests."""
        self._loaded = loaded
        self.languages, self.pairs = loaded.languages, loaded.pairs
        only = loaded.languages[0]
        source, _, target = self.pairs[0].rpartition("-") if self.pairs else [only] * 3
        self.direction = source, target
        self.needs_source_language = loaded.needs_source_language
        self.max_pieces, self.n_best = loaded.max_pieces, limits.n_best
        self.options = [name for name in loaded.options if name not in _NO_OPTIONS]
        self.score, self.explain = loaded.score, getattr(loaded, "explain", None)
        translator = loaded.translator()
        self._own = own = translator.decoding.filled(translator.fitted)
        beams = max(limits.beam_size, own.beam_size)
        self._largest = {"n_best": limits.n_best, "beam_size": beams}
        room = translator.part_pieces + _TAG_AND_EOS
        self._longest = max(limits.max_output_tokens, own.longest(room))
        # The server does not count tag and EOS; twice its limit has room for them.
        self._batch_tokens = 2 * limits.max_batch_tokens

    def measure(self, sentences: Sequence[str], **options: Any) -> list[Size]:
        """Checks options and measures sentences, before a request waits. Raises ValueError: an
        option that does not exist, or whose value is not allowed; TooLong: a translation may be too
        long."""
        translator = self._loaded.translator(**{"n_best": 1, **options})
        search, room = translator.decoding.filled(translator.fitted), translator.part_pieces
        for name, largest in self._largest.items():
            if getattr(search, name) > largest:
                raise ValueError(
                    f"{name} must be 1 to {largest} on this server, got {getattr(search, name)}; "
                    f"give a smaller value."
                )
        sizes = []
        for number, parts in enumerate(translator.split(sentences), start=1):
            read = [min(part.size, room) for part in parts]
            longest, own = (
                sum(params.longest(pieces + _TAG_AND_EOS) for pieces in read)
                for params in (search, self._own)
            )
            if longest > (allowed := max(self._longest, own)):
                raise TooLong(
                    f"With length_ratio={search.length_ratio:g} and length_offset="
                    f"{search.length_offset} the translation of sentence {number} may have "
                    f"{longest:,} tokens, but at most {allowed:,} are allowed; give smaller "
                    f"values, or raise --max_output_tokens of the server."
                )
            sizes.append(Size(sum(read), left_out(parts, room), longest))
        return sizes

    def translate(
        self, sentences: Sequence[str], to: str, *, source_language: str | None, **options: Any
    ) -> list[list[Translation]]:
        """Translates sentences; without the option n_best, one translation of each. Raises
        ValueError: the model does not know a language, or needs the source language."""
        return self._loaded.translate(
            sentences,
            to,
            source_language=source_language,
            warn=lambda line: None,  # answers have `left_out` instead
            batch_tokens=self._batch_tokens,
            **options,
        )

    def sizes(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[int, int]]:
        """The number of pieces of each source and of its target."""
        counts = self._loaded.count_pieces(sources), self._loaded.count_target_pieces(targets)
        return list(zip(*counts, strict=True))
