"""A vocabulary inside a graph.  F texts, R rows, V pieces."""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.data.vocabulary import SPACE, Vocabulary
from lingvo_moe.nn.special_tokens import UNK

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
            self._detokenize(tokenizer, rows),
            tokenizer.id_to_string(ids),
        )

    def _detokenize(self, tokenizer, rows):
        """The text of each row. SentencePiece removes the space of the first piece; the tokenizer
        removes all spaces there, so a known piece is put before them."""
        if not self._vocabulary.keeps_first_spaces:
            return tokenizer.detokenize(rows)
        rows = tf.ragged.boolean_mask(rows, tf.gather(self._is_shown(), rows))
        content, piece = min(
            (content.lstrip(), ids[0])
            for content, ids in self._vocabulary.ids_by_content.items()
            if content.strip() and not self._vocabulary.is_byte[ids[0]]
        )
        marks = tf.fill([rows.nrows(), 1], piece)
        texts = tokenizer.detokenize(tf.concat([marks, rows], axis=1))
        texts = tf.strings.substr(texts, len(content), tf.int32.max)
        first = tokenizer.id_to_string(rows[:, :1].to_tensor(piece, shape=[None, 1])[:, 0])
        spaced = tf.strings.regex_full_match(first, f"{SPACE}.*")
        return tf.where(spaced, tf.strings.regex_replace(texts, "^ ", ""), texts)

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The ids int32 [F, …] of texts string [F]."""
        return self._all(texts, tf.zeros([0], tf.int32), tf.zeros([1], tf.int64)).encoded

    def count(self, texts: tf.Tensor) -> tf.Tensor:
        """int32 [F]: the number of pieces of each text."""
        return tf.cast(self.encode(texts).row_lengths(), tf.int32)

    def decode(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """The texts string [R] of ids int32 [R, …]."""
        return self._all(tf.zeros([0], tf.string), ids.values, ids.row_splits).decoded

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The pieces of ids, as strings of the same shape."""
        flat = tf.reshape(ids, [-1])
        found = self._all(tf.zeros([0], tf.string), flat, tf.zeros([1], tf.int64)).pieces
        return tf.reshape(found, tf.shape(ids))

    def _is_shown(self):
        """bool [V]: whether a piece has a text, and is not a control symbol.

        The graph stores only those that have not, because they are few.
        """
        shown = {UNK, *itertools.chain(*self._vocabulary.ids_by_content.values())}
        others = np.array(sorted(set(range(self._vocabulary.size)) - shown), np.int32)
        size = [self._vocabulary.size]
        return tf.scatter_nd(others[:, None], tf.ones_like(others), size) == 0
