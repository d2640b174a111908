"""Text in, text out: tokenisation, batching and decoding around a compiled beam search."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from lingvo_moe.core.lines import cut_warning, is_blank, one_line
from lingvo_moe.data.batching import padded_batches
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import TranslationParams

BLOCK = 4096  # sentences that are sorted by length together

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B]) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray], BeamOutput]


def max_source_length(params: TranslationParams) -> int:
    """Tokens of the longest sentence that is translated whole, language tag and EOS included.

    This is far longer than the rows of training; longer sentences are cut.
    """
    return 4 * params.input.source_length


class Translation(NamedTuple):
    """text, one line, and its length-normalised log-probability."""

    text: str
    score: float


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
        n_best: translations of a sentence, as many as translate_ids gives.
        batch_size: sentences decoded together.
    """

    translate_ids: TranslateFn
    source: Vocabulary
    target: Vocabulary
    tag: Callable[[str], int]
    task_id: Callable[[str | None, str], int]
    max_source_length: int
    n_best: int
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
            model_dir.params.decoding.n_best,
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
                and gets none, or one that it was not trained on.
        """
        tag = self.tag(target_language)
        task = self.task_id(source_language, target_language)
        results = [[Translation("", 0.0)] * self.n_best for _ in sentences]
        filled = [i for i, text in enumerate(sentences) if not is_blank(text)]
        progress(len(sentences) - len(filled))
        pieces = self.source.encode([sentences[i] for i in filled])
        room = self.max_source_length - 2  # for the tag and EOS
        left_out = {
            i + first_line: len(ids) - room
            for i, ids in zip(filled, pieces, strict=True)
            if len(ids) > room
        }
        if left_out:
            warn(cut_warning(left_out))
        encoded = [[tag, *ids[:room], EOS] for ids in pieces]
        for indices, ids, lengths in padded_batches(encoded, self.batch_size):
            output = self.translate_ids(ids, lengths, np.full_like(lengths, task))
            for index, translations in zip(indices, self._texts(output), strict=True):
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

    def _texts(self, output: BeamOutput) -> list[list[Translation]]:
        ids, lengths, scores = (np.asarray(x) for x in (output.ids, output.lengths, output.scores))
        batch, n_best = lengths.shape
        hypotheses = [
            [int(i) for i in ids[b, n, : lengths[b, n]] if i != EOS]
            for b in range(batch)
            for n in range(n_best)
        ]
        texts = [one_line(text) for text in self.target.decode(hypotheses)]
        return [
            [Translation(texts[b * n_best + n], float(scores[b, n])) for n in range(n_best)]
            for b in range(batch)
        ]
