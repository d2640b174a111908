"""Reads sentences in an exported graph.  B sentences, L source length."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.serving.graph_functions import checked
from lingvo_moe.serving.graph_vocabulary import GraphVocabulary
from lingvo_moe.tasks.translation import TranslationTask


class Read(NamedTuple):
    """Sentences as the network reads them."""

    ids: tf.Tensor  # int32 [B, L], with tags and EOS
    lengths: tf.Tensor  # int32 [B]
    tasks: tf.Tensor  # int32 [B]
    pieces: tf.Tensor  # string [B, L], without tags and EOS; then ""
    left_out: tf.Tensor  # int32 [B], number of pieces cut


class SentenceEncoder:
    """Encodes sentences.

    Attributes:
        tables: of languages and tasks; the tf.Module that is saved must have them.
    """

    def __init__(self, task: TranslationTask, tags: Mapping[str, int], vocabulary: GraphVocabulary):
        """Makes the tables.

        Args:
            task: the model.
            tags: language -> the id of its tag.
            vocabulary: of the source.
        """
        self._task, self._languages, self._vocabulary = task, sorted(tags), vocabulary
        self.tables = [_numbers(tags)]
        if task.task_router:
            self.tables.append(_numbers(task.trained_tasks))
        self._read = tf.function(self._encode, autograph=False)

    def __call__(
        self,
        sentences: tf.Tensor,
        languages: Mapping[str, tf.Tensor],
        source_prefix: str | tf.Tensor = "",
        *,
        limit: int,
    ) -> Read:
        """Encodes sentences.

        Args:
            sentences: string [B].
            languages: string [], by the name of their argument, see `ServedModel.translate`.
            source_prefix: string [], put in front of each.
            limit: largest number of pieces.
        """
        given = tf.convert_to_tensor(source_prefix), tf.constant(limit)
        return self._read(sentences, dict(languages), *given)

    def _encode(self, sentences, languages, source_prefix, limit):
        source, target = (languages.get(name) for name in ("source_language", "target_language"))
        tags = self._task.params.language_tags
        source_tag = self._tag(source, "source") if tags.needs_source_language else None
        prefix = tags.prefix(source_tag, self._tag(target, "target"))
        found = self._vocabulary.encode(tf.strings.join([source_prefix, sentences]))
        count = tf.cast(found.row_lengths(), tf.int32)
        pieces, lengths = found.to_tensor()[:, :limit], tf.minimum(count, limit)
        batch, real = tf.shape(pieces)[0], tf.sequence_mask(lengths, tf.shape(pieces)[1])
        before = [tf.fill([batch, 1], tag) for tag in prefix]
        return Read(
            tf.concat([*before, with_end(pieces, lengths)], axis=1),
            lengths + len(prefix) + 1,
            tf.fill([batch], self._task_id(source, target)),
            tf.where(real, self._vocabulary.pieces(pieces), ""),
            count - lengths,
        )

    def _tag(self, language, side):
        """int32 []: the tag of a language, given as a string tensor [], of "source" or "target"."""
        tag = self.tables[0].lookup(language)
        known = ", ".join(self._languages)
        return checked(
            tag,
            tag >= 0,
            f"{side}_language: this model does not know that language; it knows {known}.",
        )

    def _task_id(self, source_language, target_language):
        """int32 []: as TranslationTask.task_id, from string tensors []."""
        router = self._task.task_router
        if router is None:
            return tf.constant(0)
        name = {
            "source": lambda: source_language,
            "target": lambda: target_language,
            "pair": lambda: tf.strings.join([source_language, target_language], "-"),
        }[router.task]()
        number = self.tables[1].lookup(name)
        return checked(
            number,
            number >= 0,
            f"This model routes by {router.task} and has no experts for that {router.task}; give "
            f"one that it was trained on: {', '.join(self._task.trained_tasks)}.",
        )


def with_end(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """int32 [B, L + 1]: rows of ids [B, L], of these lengths, with EOS at their ends."""
    place = tf.range(tf.shape(ids)[1] + 1)
    return tf.where(place == lengths[:, None], EOS, tf.pad(ids, [[0, 0], [0, 1]]))


def _numbers(numbers: Mapping[str, int]) -> tf.lookup.StaticHashTable:
    """Name -> number int32, -1 for other names."""
    keys, values = tf.constant(list(numbers)), tf.constant(list(numbers.values()), tf.int32)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1
    )
