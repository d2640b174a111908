"""What a SavedModel's graph is made of: functions with names, checks, vocabularies, sentences.

B sentences, L source length, F texts, R rows.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.data.vocabulary import EOS, Vocabulary
from lingvo_moe.decoding.fitted import FITTED
from lingvo_moe.decoding.params import RANGES
from lingvo_moe.decoding.request import OWN
from lingvo_moe.nn.gradients import without_gradients
from lingvo_moe.tasks.translation import TranslationTask


def checked(values: Any, condition: tf.Tensor, message: str) -> Any:
    """The tensors; if the condition bool [] is false, the graph ends with InvalidArgumentError.

    What is computed from the result runs after the check, so no other error can come first.
    """
    # A tf.debugging.assert_… would add two functions to the graph.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[message])]):
        return tf.nest.map_structure(tf.identity, values)


def checked_numbers(options: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The options of a request; the graph ends with an error if a number is out of range."""
    fits = [
        (options[name] >= (OWN if name in FITTED else least)) & (options[name] <= most)
        for name, (least, most) in RANGES.items()
    ]
    fits += [(options["top_p"] > 0) & (options["top_p"] <= 1), options["min_p"] <= 1]
    others = ("min_length", "no_repeat_ngram", "temperature", "top_k", "min_p")
    fits += [options[name] >= 0 for name in others] + [options["temperature"] < math.inf]
    ranges = ", ".join(f"{name} {least} to {most}" for name, (least, most) in RANGES.items())
    return checked(
        dict(options),
        tf.reduce_all(fits),
        f"An option is out of range. Allowed: {ranges}, 0 < top_p <= 1, min_p <= 1, other "
        f"numbers >= 0 and finite.",
    )


def function_of(
    function: Callable[..., Any],
    specs: Mapping[str, tf.TensorSpec],
    defaults: Mapping[str, tf.Tensor] | None = None,
) -> tf.types.experimental.PolymorphicFunction:
    """A tf.function with named arguments, without custom gradients.

    Args:
        function: takes tensors by name.
        specs: name -> spec of each required argument.
        defaults: name -> default value of each optional argument. An optional argument of rank 1
            may have any size.
    """
    defaults = defaults or {}
    shapes = {name: spec.shape for name, spec in specs.items()}
    shapes |= {name: [None] * value.shape.rank for name, value in defaults.items()}
    given = {**specs, **defaults}

    @without_gradients()
    def call(*tensors):
        return function(**dict(zip(given, tensors, strict=True)))

    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    vars(call)["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name, none)) for name in given]
    )
    signature = [tf.TensorSpec(shapes[name], value.dtype, name) for name, value in given.items()]
    return tf.function(call, autograph=False, input_signature=signature)


def rstrip(text: tf.Tensor) -> tf.Tensor:
    """As str.rstrip, for text in one line."""
    return tf.strings.regex_replace(text, r"[\s\p{Z}]+$", "")


class GraphVocabulary:
    """The operations of a Vocabulary in a graph.

    They are one tf.function, because each function that contains the vocabulary stores a copy of
    it. What a caller does not use is not computed.
    """

    def __init__(self, vocabulary: Vocabulary, name: str):
        """Prepares the function.

        Args:
            vocabulary: what it holds.
            name: no other vocabulary of the graph may have it.
        """
        self._vocabulary, self._name = vocabulary, name
        types = tf.string, tf.int32, tf.int64
        signature = [tf.TensorSpec([None], dtype) for dtype in types]
        self._all = tf.function(self._compute, autograph=False, input_signature=signature)

    def _compute(self, texts, ids, splits):
        """The ids of texts [F], the texts of rows [R] of ids, and the pieces of all these ids."""
        import tensorflow_text as tf_text  # imports Keras, and JAX if that is installed

        # The tokenizer is no attribute of self, because a SavedModel would store it a second time.
        # Its name is its own, because TensorFlow shares one resource between equal names.
        tokenizer = tf_text.SentencepieceTokenizer(
            model=self._vocabulary.model_bytes, out_type=tf.int32, name=self._name
        )
        ids = tf.minimum(ids, self._vocabulary.size - 1)  # a larger one would end the process
        rows = tf.RaggedTensor.from_row_splits(ids[: splits[-1]], splits, validate=False)
        return tokenizer.tokenize(texts), tokenizer.detokenize(rows), tokenizer.id_to_string(ids)

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The ids int32 [F, …] of texts string [F]."""
        return self._all(texts, tf.zeros([0], tf.int32), tf.zeros([1], tf.int64))[0]

    def count(self, texts: tf.Tensor) -> tf.Tensor:
        """int32 [F]: the number of pieces of each text."""
        return tf.cast(self.encode(texts).row_lengths(), tf.int32)

    def decode(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """The texts string [R] of ids int32 [R, …], without spaces at their beginnings."""
        return self._all(tf.zeros([0], tf.string), ids.values, ids.row_splits)[1]

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The pieces of ids, as strings of the same shape."""
        flat = tf.reshape(ids, [-1])
        found = self._all(tf.zeros([0], tf.string), flat, tf.zeros([1], tf.int64))[2]
        return tf.reshape(found, tf.shape(ids))


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
