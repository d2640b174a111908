"""Export to a SavedModel that takes strings and returns strings.  B sentences, N best."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from lingvo_moe.core.console import quiet
from lingvo_moe.core.lines import INVISIBLE, LINE_ENDS
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.serving.client import check_path
from lingvo_moe.serving.exported import Exported
from lingvo_moe.serving.format import Format
from lingvo_moe.serving.storage import FLOAT32, Packed, Storage, variables_of
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translator import export_request, max_pieces

_BLANK = "[" + "".join(f"\\p{{{category}}}" for category in INVISIBLE) + "]*"  # see is_blank


class ServedModel(tf.Module):
    """Vocabularies, weights and beam search in one graph.

    Attributes:
        translate: a tf.function of `sentences` string [B], UTF-8, `source_language` string [] (only
            for models that need it), and `target_language` string [], such as "en". It returns
            `translations` string [B, N], best first, each one line, empty for blank sentences;
            `scores` float32 [B, N], length-normalised log-probabilities; and `left_out` int32 [B],
            the number of tokens cut from a sentence that is too long. An unknown language is a
            tf.errors.InvalidArgumentError.
        count_pieces: a tf.function of `sentences` string [B] -> int32 [B], their numbers of tokens.
        about: a tf.function without arguments: the attributes of an `Exported`, by name.
    """

    def __init__(self, model_dir: ModelDir, theta: NestedMap, storage: Storage = FLOAT32):
        """Prepares the tensors of the graph.

        Args:
            model_dir: the trained model.
            theta: its weights, float32 arrays.
            storage: how weights are stored in the file.
        """
        super().__init__()
        self._task, self._request = model_dir.task, export_request(model_dir)
        if storage.widens:
            self._variables, held = variables_of(theta.map(storage.pack, self._task.weights()))
            self._laid_out = lambda: self._task.lay_out(held().map(Packed.unpack))
        else:
            held = tf.nest.map_structure(_variable, self._task.lay_out(theta.map(tf.constant)))
            self._variables = tf.nest.flatten(held)  # tf.Module tracks lists
            self._laid_out = lambda: held
        self._vocabulary = model_dir.vocabulary
        self._max_pieces = max_pieces(model_dir.params)
        self._tags = _numbers(model_dir.tags)
        self._languages = sorted(model_dir.tags)
        self._pairs = model_dir.params.input.pairs or model_dir.pairs
        if self._task.task_router:
            self._tasks = _numbers(self._task.trained_tasks)
        from_source = self._task.needs_source_language
        names = ["source_language", "target_language"] if from_source else ["target_language"]
        self.translate = tf.function(
            self._translate_from if from_source else self._translate_into,
            autograph=False,
            input_signature=[
                tf.TensorSpec([None], tf.string, "sentences"),
                *(tf.TensorSpec([], tf.string, name) for name in names),
            ],
        )
        strings = tf.TensorSpec([None], tf.string, "sentences")
        self._pieces = tf.function(self._tokenize, autograph=False, input_signature=[strings])
        self.count_pieces = tf.function(self._count, autograph=False, input_signature=[strings])
        self.about = tf.function(self._about, autograph=False, input_signature=[])

    def _about(self):
        return {
            "languages": tf.constant(self._languages),
            "pairs": tf.constant(self._pairs, tf.string),
            "n_best": tf.constant(self._task.params.decoding.n_best),
            "max_pieces": tf.constant(self._max_pieces),
        }

    def _tokenizer(self, side):
        """A tokenizer for the function being traced; an attribute would be saved twice."""
        # Two tokenizers of one name would be one resource in the loaded model.
        return tf_text.SentencepieceTokenizer(
            model=self._vocabulary(side).model_bytes, out_type=tf.int32, name=side
        )

    def _tokenize(self, sentences):
        return self._tokenizer("source").tokenize(sentences)

    def _count(self, sentences):
        return tf.cast(self._pieces(sentences).row_lengths(), tf.int32)

    def _translate_from(self, sentences, source_language, target_language):
        return self._translate(sentences, source_language, target_language)

    def _translate_into(self, sentences, target_language):
        return self._translate(sentences, tf.constant(""), target_language)

    def _translate(self, sentences, source_language, target_language):
        tags = self._task.params.language_tags
        source = self._tag(source_language) if tags.needs_source_language else None
        prefix = tags.prefix(source, self._tag(target_language))
        task = self._task_id(source_language, target_language)
        pieces = self._pieces(sentences)
        left_out = tf.maximum(tf.cast(pieces.row_lengths(), tf.int32) - self._max_pieces, 0)
        pieces = pieces[:, : self._max_pieces]
        batch = pieces.nrows(out_type=tf.int32)
        ends = tf.ones([batch, 1], tf.int32)
        ids = tf.concat([*(ends * tag for tag in prefix), pieces, ends * EOS], axis=1)
        lengths, tasks = tf.cast(ids.row_lengths(), tf.int32), tf.fill([batch], task)
        output = self._task.decode(self._laid_out(), ids.to_tensor(), lengths, tasks, self._request)
        blank = tf.strings.regex_full_match(sentences, _BLANK)
        return {
            "translations": tf.where(blank[:, None], "", self._texts(output)),
            "scores": tf.where(blank[:, None], 0.0, output.scores),
            "left_out": tf.where(blank, 0, left_out),
        }

    def _tag(self, language):
        """int32 []: the tag of a language, given as a string tensor []."""
        return _known(
            self._tags.lookup(language),
            f"This model does not know that language; it knows {', '.join(self._languages)}",
        )

    def _task_id(self, source_language, target_language):
        """int32 []: as TranslationTask.task_id, from string tensors []."""
        router = self._task.task_router
        if router is None:
            return tf.constant(0)
        name = {
            "source": source_language,
            "target": target_language,
            "pair": tf.strings.join([source_language, target_language], "-"),
        }[router.task]
        return _known(
            self._tasks.lookup(name),
            f"This model routes by {router.task} and has no experts for that {router.task}; it was "
            f"trained on {', '.join(self._task.trained_tasks)}",
        )

    def _texts(self, output):
        n_best = output.lengths.shape[1]
        flat_ids = tf.reshape(output.ids, [-1, tf.shape(output.ids)[2]])
        real = tf.sequence_mask(tf.reshape(output.lengths, [-1]), tf.shape(flat_ids)[1])
        pieces = tf.ragged.boolean_mask(flat_ids, real & (flat_ids != EOS))
        texts = self._tokenizer("target").detokenize(pieces)
        return tf.reshape(tf.strings.regex_replace(texts, LINE_ENDS, " "), [-1, n_best])


def _numbers(numbers: Mapping[str, int]) -> tf.lookup.StaticHashTable:
    """Name -> number int32, -1 for other names."""
    keys, values = tf.constant(list(numbers)), tf.constant(list(numbers.values()), tf.int32)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1
    )


def _known(number: tf.Tensor, message: str) -> tf.Tensor:
    """The number; if it is -1, an error with this message. TensorFlow ends it with a full stop."""
    with tf.control_dependencies([tf.debugging.assert_non_negative(number, message)]):
        return tf.identity(number)


@dataclasses.dataclass(frozen=True)
class SavedModel(Format):
    """A SavedModel and `translate.py`, a client that shows how to call it.

    The signature `serving_default` (also the method `translate`) takes strings and returns strings.
    Loading and calling it needs only TensorFlow and tensorflow-text.
    """

    client = "client.py"

    def check(self, model_dir, output, pruning):
        """Checks that TensorFlow can load a model from the path of the output."""
        check_path(output.absolute())

    def write(self, model_dir, theta, step, directory):
        """Writes the SavedModel."""
        with quiet():  # SentencePiece logs its normalization
            module = ServedModel(model_dir, theta, self.storage)
        tf.saved_model.save(module, str(directory), signatures=module.translate)

    def open(self, path):
        """Loads the SavedModel."""
        exported = Exported(path)

        def translate(sentences, target_language, source_language, warn):
            return exported.translate(
                sentences, target_language, source_language=source_language, warn=warn
            )

        return translate


def _variable(array: np.ndarray | tf.Tensor | None) -> tf.Variable | None:
    return None if array is None else tf.Variable(array, trainable=False)
