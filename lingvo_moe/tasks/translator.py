"""Text in, text out: tokenisation, batching and decoding around a compiled beam search."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.data.batching import padded_batches
from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.flat_beam_search import BeamOutput
from lingvo_moe.tasks.model_dir import ModelDir

# (source_ids int32 [B, L], lengths int32 [B], tasks int32 [B]) -> BeamOutput
TranslateFn = Callable[[np.ndarray, np.ndarray, np.ndarray], BeamOutput]


class Translation(NamedTuple):
    """text, and its length-normalised log-probability."""

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates sentences with one model.

    Attributes:
        translate_ids: decodes a batch, such as a runtime's `translate`.
        source: source vocabulary.
        target: target vocabulary.
        tags: language -> id of its tag.
        task_id: (source language or None, target language) -> the task that a router by task goes
            by, such as `TranslationTask.task_id`.
        max_source_length: longer sentences, in tokens, are cut (and counted by the caller's eye: a
            sentence of that length is far beyond what training saw).
        batch_size: sentences decoded together.
    """

    translate_ids: TranslateFn
    source: Vocabulary
    target: Vocabulary
    tags: dict[str, int]
    task_id: Callable[[str | None, str], int]
    max_source_length: int
    batch_size: int = 64

    @staticmethod
    def of(model_dir: ModelDir, translate_ids: TranslateFn, batch_size: int = 64) -> "Translator":
        """The translator of a logdir whose weights translate_ids uses."""
        return Translator(
            translate_ids,
            model_dir.vocabulary("source"),
            model_dir.vocabulary("target"),
            model_dir.tags,
            model_dir.task.task_id,
            4 * model_dir.params.input.source_length,
            batch_size,
        )

    def __call__(
        self,
        sentences: Sequence[str],
        target_language: str,
        source_language: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> list[list[Translation]]:
        """Translates; empty sentences give empty translations.

        Args:
            sentences: in any languages the model knows.
            target_language: which language to translate into.
            source_language: which language all sentences are in; only models whose router goes by
                it need it, others pass over it.
            progress: called with the number of sentences done since the last call.

        Returns:
            For each sentence its n best translations, best first.

        Raises:
            ValueError: the model does not know the target language; or it needs the source language
                and gets none, or one that it was not trained on.
        """
        if target_language not in self.tags:
            raise ValueError(
                f"This model does not translate into {target_language!r}; it knows "
                f"{', '.join(sorted(self.tags))}."
            )
        task = self.task_id(source_language, target_language)
        results: list[list[Translation]] = [[Translation("", 0.0)] for _ in sentences]
        filled = [i for i, text in enumerate(sentences) if text.strip()]
        progress(len(sentences) - len(filled))
        encoded = [
            [self.tags[target_language], *ids[: self.max_source_length - 2], EOS]
            for ids in self.source.encode([sentences[i] for i in filled])
        ]
        for indices, ids, lengths in padded_batches(encoded, self.batch_size):
            output = self.translate_ids(ids, lengths, np.full_like(lengths, task))
            for index, translations in zip(indices, self._texts(output), strict=True):
                results[filled[index]] = translations
            progress(len(indices))
        return results

    def _texts(self, output: BeamOutput) -> list[list[Translation]]:
        ids, lengths, scores = (np.asarray(x) for x in (output.ids, output.lengths, output.scores))
        batch, n_best = lengths.shape
        hypotheses = [
            [int(i) for i in ids[b, n, : lengths[b, n]] if i != EOS]
            for b in range(batch)
            for n in range(n_best)
        ]
        texts = self.target.decode(hypotheses)
        return [
            [Translation(texts[b * n_best + n], float(scores[b, n])) for n in range(n_best)]
            for b in range(batch)
        ]
