"""A vocabulary inside a graph.  F texts, R rows, V pieces."""

from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.data.vocabulary import Vocabulary

_STRINGS = tf.TensorSpec([None], tf.string)
_IDS, _SPLITS = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)


def rstrip(text: tf.Tensor) -> tf.Tensor:
    """As str.rstrip, for text in one line."""
    return tf.strings.regex_replace(text, r"[\s\p{Z}]+$", "")


class _Results(NamedTuple):
    """All results of a vocabulary."""

    encoded: tf.RaggedTensor  # int32 [F, …], of texts
    decoded: tf.Tensor  # string [R], of rows of ids
    pieces: tf.Tensor  # string, of all these ids


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
        self._all = tf.function(
            self._compute, autograph=False, input_signature=[_STRINGS, _IDS, _SPLITS]
        )

    def _compute(self, texts, ids, splits):
        import tensorflow_text as tf_text  # imports Keras, and JAX if that is installed

        # The tokenizer is no attribute of self, because a SavedModel would store it a second time.
        # Its name is its own, because TensorFlow shares one resource between equal names.
        tokenizer = tf_text.SentencepieceTokenizer(
            model=self._vocabulary.model_bytes, out_type=tf.int32, name=self._name
        )
        ids = tf.minimum(ids, self._vocabulary.size - 1)  # a larger one would end the process
        rows = tf.RaggedTensor.from_row_splits(ids[: splits[-1]], splits, validate=False)
        return _Results(
            tokenizer.tokenize(texts),
            tokenizer.detokenize(rows),
            tokenizer.id_to_string(ids),
        )

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The ids int32 [F, …] of texts string [F]."""
        return self._all(texts, tf.zeros([0], tf.int32), tf.zeros([1], tf.int64)).encoded

    def count(self, texts: tf.Tensor) -> tf.Tensor:
        """int32 [F]: the number of pieces of each text."""
        return tf.cast(self.encode(texts).row_lengths(), tf.int32)

    def decode(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """The texts string [R] of ids int32 [R, …], without spaces at their beginnings."""
        return self._all(tf.zeros([0], tf.string), ids.values, ids.row_splits).decoded

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The pieces of ids, as strings of the same shape."""
        flat = tf.reshape(ids, [-1])
        found = self._all(tf.zeros([0], tf.string), flat, tf.zeros([1], tf.int64)).pieces
        return tf.reshape(found, tf.shape(ids))
