"""Log-probabilities of given translations: tokenisation and batching for a runtime's `score`."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.data.packing import padded
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.inference.texts import check_texts
from lingvo_moe.inference.translator import encode_sources, max_pieces
from lingvo_moe.system.batching import batches
from lingvo_moe.tasks.model_dir import ModelDir

MAX_TOKENS = 4096  # for each side; the memory of attention grows with the square of their number

# The fields of a GivenBatch -> log-probabilities float32 [B, T]
ScoreFn = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class GivenBatch(NamedTuple):
    """Given translations of a batch, padded."""

    source_ids: np.ndarray  # int32 [B, L], with tags and EOS
    source_lengths: np.ndarray  # int32 [B]
    target_ids: np.ndarray  # int32 [B, T], with EOS
    target_lengths: np.ndarray  # int32 [B]
    tasks: np.ndarray  # int32 [B]


class Score(NamedTuple):
    """The log-probability of a translation."""

    log_prob: float  # log P of the translation given its source, in nats, with EOS
    tokens: tuple[str, ...]  # the pieces of the translation; the last is "</s>" (EOS)
    # log P of each piece, given the source and the pieces before it; their sum is log_prob
    token_log_probs: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Its fields for JSON; a token has `text` and `log_prob`."""
        each = zip(self.tokens, self.token_log_probs, strict=True)
        tokens = [{"text": text, "log_prob": log_prob} for text, log_prob in each]
        return {"log_prob": self.log_prob, "tokens": tokens}


def check_parallel(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Checks that sources and targets are lists of texts, one target for each source. Raises
    ValueError: they are not."""
    check_texts("sources", sources)
    check_texts("targets", targets)
    if len(sources) != len(targets):
        raise ValueError(
            f"There are {len(sources)} sources and {len(targets)} targets; give one target for "
            f"each source."
        )


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores pairs of sentences with one model."""

    model_dir: ModelDir  # vocabularies, tags and tasks
    score_ids: ScoreFn  # scores a batch, such as a runtime's `score`
    batch_tokens: int = 2048  # tokens of either side that are scored together, padding included

    def __call__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        target_language: str,
        source_language: str | None = None,
    ) -> list[Score]:
        """Scores each target as the translation of the source with the same index.

        Args:
            sources: sentences to translate.
            targets: their translations, as many.
            target_language: the language of the targets.
            source_language: of the sources; needed only by models that have its tag or route by it.

        Raises ValueError: there are not as many targets as sources, the model does not know a
        language, or it needs the source language and gets none; or a sentence has too many tokens.
        The limit is MAX_TOKENS or the number that the model can translate, whichever is larger.
        """
        given = self.given_batches(sources, targets, target_language, source_language)
        scores: dict[int, Score] = {}
        for indices, batch in given:
            scores.update(zip(indices, self.score_batch(batch), strict=True))
        return [scores[index] for index in range(len(scores))]

    def score_batch(self, batch: GivenBatch) -> list[Score]:
        """The scores of the rows of a batch."""
        vocabulary, found = self.model_dir.vocabulary("target"), []
        rows = np.asarray(self.score_ids(*batch))
        for row, ids, length in zip(rows, batch.target_ids, batch.target_lengths, strict=True):
            log_probs = tuple(float(x) for x in row[:length])
            found.append(Score(sum(log_probs), tuple(vocabulary.pieces(ids[:length])), log_probs))
        return found

    def given_batches(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        target_language: str,
        source_language: str | None = None,
    ) -> Iterator[tuple[Sequence[int], GivenBatch]]:
        """The batches of a call, with the indices of their pairs; arguments and errors as there."""
        check_parallel(sources, targets)
        sources, targets = list(sources), list(targets)  # indices of a pandas.Series are labels
        prefix = self.model_dir.prefix(source_language, target_language)
        task = self.model_dir.task.task_id(source_language, target_language)
        decoding = self.model_dir.params.decoding
        read = encode_sources(self.model_dir.vocabulary("source"), decoding, sources)
        written = self.model_dir.vocabulary("target").encode(targets)
        longest = max_pieces(self.model_dir.params)
        for side, sentences in (("source", read), ("target", written)):
            check_lengths(side, map(len, sentences), longest)
        source_ids = [[*prefix, *ids, EOS] for ids in read]
        target_ids = [[*ids, EOS] for ids in written]
        longer = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        for indices in batches(longer, self.batch_tokens):
            sides = [padded([ids[i] for i in indices]) for ids in (source_ids, target_ids)]
            tasks = np.full(len(indices), task, np.int32)
            yield indices, GivenBatch(*sides[0], *sides[1], tasks)


def check_lengths(side: str, lengths: Iterable[int], longest: int) -> None:
    """Checks that sentences are short enough to be scored.

    Args:
        side: "source" or "target", for the error.
        lengths: tokens of each sentence.
        longest: tokens of the longest sentence that the model translates.

    Raises ValueError: one has more than MAX_TOKENS and than `longest` tokens.
    """
    most = max(MAX_TOKENS, longest)
    for number, length in enumerate(lengths, start=1):
        if length > most:
            raise ValueError(
                f"Line {number}: the {side} has {length:,} tokens, and at most {most:,} can be "
                f"scored. Split both sides into matching parts, and score each."
            )
