"""Translates texts of any length, with a model or an export that translates short ones."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from lingvo_moe.config.fields import short_repr
from lingvo_moe.data.sentences import Part, left_out, sentence_language, split_texts, written
from lingvo_moe.data.surface import as_written, copy_of, wordless
from lingvo_moe.decoding.fitted import UNFITTED, Fitted
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.inference.parts import TranslatedPart, Translation, merge_hypotheses
from lingvo_moe.system.batching import batches
from lingvo_moe.system.lines import blocks, check_utf8, cut_warning

_READ = 2  # tokens of a part that the encoder reads besides its pieces: a tag and EOS
BLOCK = 4096  # sentences that are sorted by length together


def check_texts(name: str, texts: Any) -> None:
    """Checks that an argument is a list of texts; a single text would be read letter by letter.
    Raises ValueError: it is not, or a text cannot be encoded."""
    if isinstance(texts, str) or not hasattr(texts, "__len__"):
        raise ValueError(f"{name} must be a list of texts, got {short_repr(texts)}.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a text, got {short_repr(text)}.")
        check_utf8(text, f"{name}[{i}]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTranslator(abc.ABC):
    """Checks texts, splits them into sentences, translates these in batches, and joins them."""

    decoding: BeamSearchParams  # how to search
    part_pieces: int  # largest number of pieces of what is translated as a whole
    added: int = 0  # tokens that the model reads besides the pieces of a part
    tags: int = 0  # number of language tags in front of a translation; the score counts them
    fitted: Fitted = UNFITTED  # values of params of decoding that are FROM_DATA
    penalties: tuple[float, ...] = ()  # as of a Request
    pairs: Sequence[str] = ()  # the model's language pairs, such as "de-en"

    @abc.abstractmethod
    def asked(self, target_language: str, source_language: str | None) -> Any:
        """The languages as `run` takes them. Raises ValueError: as a call."""

    @abc.abstractmethod
    def count(self, texts: Sequence[str]) -> list[int]:
        """The number of pieces of each text after the source prefix."""

    @abc.abstractmethod
    def run(self, texts: list[str], asked: Any, first: bool) -> list[list[TranslatedPart]]:
        """The N translations of each text of a batch; only the first part of a sentence has the
        target prefix."""

    def split(self, sentences: Sequence[str], language: str = "en") -> list[list[Part]]:
        """The parts of each sentence, which are translated one by one; see `split_texts`."""
        return split_texts(sentences, language, self.part_pieces, self.count)

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
        asked = self.asked(target_language, source_language)
        sentences = list(sentences)  # indices of a pandas.Series are labels
        language = sentence_language(source_language, target_language, self.pairs)
        split = self.split(sentences, language)
        counts = {i: left_out(parts, self.part_pieces) for i, parts in enumerate(split, first_line)}
        if any(counts.values()):
            warn(cut_warning({i: count for i, count in counts.items() if count}))
        found = self._parts(split, asked, progress)
        return [
            self._joined(sentence, target_language, parts, found[i])
            for i, (sentence, parts) in enumerate(zip(sentences, split, strict=True))
        ]

    def stream(
        self,
        sentences: Iterable[str],
        target_language: str,
        source_language: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
        warn: Callable[[str], None] = logging.warning,
        first_line: int = 1,
    ) -> Iterator[list[Translation]]:
        """Translates any number of sentences in order, with only BLOCK of them in memory.

        Args:
            As those of a call; sentences are read as they are needed.

        Yields the n best translations of each sentence. Raises ValueError: as a call, when the
        sentence is reached.
        """
        for block in blocks(sentences, BLOCK):
            yield from self(block, target_language, source_language, progress, warn, first_line)
            first_line += len(block)

    @property
    def _count(self):
        """The number of translations of each text."""
        return len(self.penalties) or self.decoding.n_best

    def _parts(self, split, asked, progress) -> list[list[list[TranslatedPart]]]:
        """The N translations of each part of each sentence."""
        progress(sum(not parts for parts in split))
        found: list[list[list[TranslatedPart]]] = [[[]] * len(parts) for parts in split]
        places = []
        for i, parts in enumerate(split):
            for n, part in enumerate(parts):
                if wordless(part.text):  # of a long text, such as its numbers
                    copied = Translation(copy_of(part.text), 0.0)
                    found[i][n] = [TranslatedPart(copied, 0)] * self._count
                    progress(n == 0)
                else:
                    places.append((i, n))
        groups = [(True, places)]
        if self.decoding.target_prefix:
            later = [(i, n) for i, n in places if n]
            groups = [(True, [(i, n) for i, n in places if not n]), (False, later)]
        for first, group in groups:
            sizes = [min(split[i][n].size, self.part_pieces) + self.added for i, n in group]
            for batch in batches(sizes, self.decoding.batch_tokens):
                chosen = [group[place] for place in batch]
                results = self.run([split[i][n].text for i, n in chosen], asked, first)
                for (i, n), best in zip(chosen, results, strict=True):
                    found[i][n] = best
                progress(sum(n == 0 for _, n in chosen))
        return found

    def _joined(self, sentence, to, parts, found) -> list[Translation]:
        """The N translations of a sentence from those of its parts."""
        if not parts:
            return [Translation(written(sentence, to, (), ()), 0.0)] * self._count
        search = self.decoding.filled(self.fitted, to)

        def penalty(length, parts):
            read = sum(min(part.size, self.part_pieces) + _READ for part in parts)
            return search.penalty(min(self.tags + length, search.rewarded(read)))

        rows = [
            [one.written(part, to) for one in best] for part, best in zip(parts, found, strict=True)
        ]
        # With penalties translation n is that of penalty n.
        merged = merge_hypotheses(rows, parts, None if self.penalties else penalty)
        form = self.fitted.decomposed
        return [one._replace(text=as_written(one.text, sentence, to, form)) for one in merged]
