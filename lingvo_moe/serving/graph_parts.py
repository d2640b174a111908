"""Parts of an exported graph that its functions share, so that it stores them once.

B sentences, K hypotheses, L source length.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.core.gradients import without_gradients
from lingvo_moe.core.lines import INVISIBLE
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.decoding.params import MAX_BEAM
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.serving.graph_vocabulary import GraphVocabulary
from lingvo_moe.tasks.translation import TranslationTask

_BLANK = "[" + "".join(f"\\p{{{category}}}" for category in INVISIBLE) + "]*"  # see is_blank
_NO_LIMIT = (1 << 31) - 1


class Packed(NamedTuple):
    """Weights of `Transformer.lay_out` as one tensor.

    A loop in a graph has one input for each tensor that it uses, with a name in each of its
    functions. For hundreds of weights these would be half of the graph.

    Attributes:
        weights: all of them.
        decoder: a NestedMap with `embedding.table`, for its type.
    """

    weights: tf.experimental.Optional
    decoder: NestedMap

    @staticmethod
    def of(laid_out: NestedMap) -> "Packed":
        """The weights, tensors or variables."""
        tensors = tf.nest.map_structure(tf.convert_to_tensor, laid_out)
        table = NestedMap(table=tensors.decoder.embedding.table)
        return Packed(tf.experimental.Optional.from_value(tensors), NestedMap(embedding=table))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTransformer(Transformer):
    """A Transformer whose encoder and step are functions. TensorFlow inlines them.

    Its weights are Packed.
    """

    @staticmethod
    def of(model: Transformer) -> "SharedTransformer":
        """The same network."""
        return SharedTransformer(
            params=model.params,
            source_vocab_size=model.source_vocab_size,
            target_vocab_size=model.target_vocab_size,
        )

    @functools.cached_property
    def _encode(self):
        encode = super().encode
        return tf.function(
            lambda packed, *given: encode(packed.get_value(), *given), autograph=False
        )

    @functools.cached_property
    def _step(self):
        step = super().step
        return tf.function(lambda packed, *given: step(packed.get_value(), *given), autograph=False)

    def encode(self, laid_out, source_ids, lengths, tasks=None):
        """As Transformer.encode."""
        return self._encode(laid_out.weights, source_ids, lengths, tasks)

    def step(self, laid_out, token_ids, step, caches, visible, source):
        """As Transformer.step, with one graph for all K."""
        given = (laid_out.weights, token_ids, step, caches, visible, source)
        specs = list(tf.nest.map_structure(tf.type_spec_from_value, given))
        for place in (1, 4):
            specs[place] = tf.TensorSpec([None] * given[place].shape.rank, given[place].dtype)
        self._step.get_concrete_function(*specs)  # later calls use it too
        logits, *others = self._step(*given)
        logits.set_shape([None, token_ids.shape[1], None])
        return logits, *others


class Read(NamedTuple):
    """Sentences as the network reads them.

    Attributes:
        ids: int32 [B, L], with tags and EOS.
        lengths: int32 [B].
        tasks: int32 [B].
        pieces: string [B, L], without tags and EOS; then "".
        left_out: int32 [B], number of pieces cut.
        blank: bool [B].
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    tasks: tf.Tensor
    pieces: tf.Tensor
    left_out: tf.Tensor
    blank: tf.Tensor


class Reader:
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
        limit: int = _NO_LIMIT,
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
        source_tag = self._tag(source) if tags.needs_source_language else None
        prefix = tags.prefix(source_tag, self._tag(target))
        found = self._vocabulary.encode(tf.strings.join([source_prefix, sentences]))
        count = tf.cast(found.row_lengths(), tf.int32)
        pieces, lengths = found.to_tensor()[:, :limit], tf.minimum(count, limit)
        batch, real = tf.shape(pieces)[0], tf.sequence_mask(lengths, tf.shape(pieces)[1])
        before = [tf.fill([batch, 1], tag) for tag in prefix]
        blank = tf.strings.regex_full_match(sentences, _BLANK)
        return Read(
            tf.concat([*before, with_end(pieces, lengths)], axis=1),
            lengths + len(prefix) + 1,
            tf.fill([batch], self._task_id(source, target)),
            tf.where(real & ~blank[:, None], self._vocabulary.pieces(pieces), ""),
            tf.where(blank, 0, count - lengths),
            blank,
        )

    def _tag(self, language):
        """int32 []: the tag of a language, given as a string tensor []."""
        tag = self.tables[0].lookup(language)
        known = ", ".join(self._languages)
        return checked(tag, tag >= 0, f"This model does not know that language; it knows {known}.")

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
            f"This model routes by {router.task} and has no experts for that {router.task}; it was "
            f"trained on {', '.join(self._task.trained_tasks)}.",
        )


def with_end(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """int32 [B, L + 1]: rows of ids [B, L], of these lengths, with EOS at their ends."""
    place = tf.range(tf.shape(ids)[1] + 1)
    return tf.where(place == lengths[:, None], EOS, tf.pad(ids, [[0, 0], [0, 1]]))


def checked(value: tf.Tensor, condition: tf.Tensor, message: str) -> tf.Tensor:
    """The value; if the condition bool [] is false, an InvalidArgumentError with the message."""
    # A tf.debugging.assert_… would add two functions to the graph.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[message])]):
        return tf.identity(value)


def check_numbers(value: tf.Tensor, numbers: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The value, `checked` that the numbers of a request keep their rules."""
    beams = [numbers[name] for name in ("beam_size", "n_best")]
    fits = [(size >= 1) & (size <= MAX_BEAM) for size in beams]
    top_p = numbers["top_p"]
    fits += [numbers["length_offset"] >= 1, (top_p > 0) & (top_p <= 1)]
    others = ("length_penalty", "length_ratio", "min_length", "no_repeat_ngram", "temperature")
    fits += [numbers[name] >= 0 for name in (*others, "top_k")]
    return checked(
        value,
        tf.reduce_all(fits),
        f"An option has a wrong value: beam_size and n_best must be 1 to {MAX_BEAM}, length_offset "
        f">= 1, 0 < top_p <= 1, and other numbers >= 0.",
    )


def function_of(
    function: Callable[..., Any],
    specs: Mapping[str, tf.TensorSpec],
    defaults: Mapping[str, tf.Tensor] | None = None,
) -> tf.types.experimental.PolymorphicFunction:
    """A tf.function of tensors by name, without custom gradients.

    Args:
        function: of tensors by name.
        specs: of those without a default.
        defaults: the values of the others; those of rank 1 may have any size.
    """
    defaults = defaults or {}
    shapes = {name: spec.shape for name, spec in specs.items()}
    shapes |= {name: [None] * value.shape.rank for name, value in defaults.items()}
    given = {**specs, **defaults}

    def call(*tensors):
        with without_gradients():
            return function(**dict(zip(given, tensors, strict=True)))

    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    vars(call)["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name, none)) for name in given]
    )
    signature = [tf.TensorSpec(shapes[name], value.dtype, name) for name, value in given.items()]
    return tf.function(call, autograph=False, input_signature=signature)


def _numbers(numbers: Mapping[str, int]) -> tf.lookup.StaticHashTable:
    """Name -> number int32, -1 for other names."""
    keys, values = tf.constant(list(numbers)), tf.constant(list(numbers.values()), tf.int32)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1
    )
