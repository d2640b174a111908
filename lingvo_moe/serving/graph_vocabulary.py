"""A vocabulary inside a graph.  F texts, R rows, E edges, V pieces, N positions in a text."""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.core.tokens import BOS, UNK
from lingvo_moe.data.vocabulary import SPACE, Vocabulary
from lingvo_moe.decoding.constraints import START, WRITTEN

_STRINGS = tf.TensorSpec([None], tf.string)
_IDS, _SPLITS = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)
_SPACES = r"[\s\p{Z}]+"


def rstrip(text: tf.Tensor) -> tf.Tensor:
    """As str.rstrip, for text in one line."""
    return tf.strings.regex_replace(text, f"{_SPACES}$", "")


def strip(text: tf.Tensor) -> tf.Tensor:
    """As str.strip, for text in one line."""
    return tf.strings.regex_replace(rstrip(text), f"^{_SPACES}", "")


class _Results(NamedTuple):
    """All results of a vocabulary."""

    encoded: tf.RaggedTensor  # int32 [F, …], of texts
    ids: tf.Tensor  # int32 [F], of texts that are a piece, else UNK's
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
            tokenizer.string_to_id(texts),
            self._detokenize(tokenizer, rows),
            tokenizer.id_to_string(ids),
        )

    def _detokenize(self, tokenizer, rows):
        """The text of each row. SentencePiece removes the space of the first piece; the tokenizer
        removes all spaces there, so a known piece is put before them.
        """
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

    def edges(self, texts: tf.Tensor) -> tf.Tensor:
        """`join_lattices` of the `Vocabulary.spellings` of texts string [F]: int32 [E, 3].

        Edges are in another order, and positions have other numbers.
        """
        ids = self.encode(texts)
        unknown = tf.reduce_any(ids == UNK, axis=1)  # no spelling has what is unknown
        texts = tf.where(unknown, "", strip(self.decode(ids)))
        content = tf.strings.join([" ", texts])
        length = tf.strings.length(content)  # in bytes
        text, start, end, ids = tf.unstack(self._pieces_in(content, length), axis=1)
        anywhere = tf.strings.regex_full_match(texts, r"[^\p{Lu}\p{Ll}\p{Lt}\p{Nd}](?s:.*)")
        free = tf.cumsum(length - 1, exclusive=True) + 1

        def number(position):
            between = tf.gather(free, text) + position
            number = tf.where(position == tf.gather(length, text), WRITTEN, between)
            return tf.where(position == 0, START, number)

        edges = tf.stack([number(start), number(end), ids], axis=1)
        begins = tf.gather(anywhere, text) & (start == 1)
        from_start = tf.boolean_mask(edges, begins) * [0, 1, 1] + [START, 0, 0]
        zero = tf.zeros_like(free)
        of_bos = tf.stack([zero + START, free + 1, zero + BOS], axis=1)
        return tf.concat([edges, from_start, tf.boolean_mask(of_bos, length > 1)], axis=0)

    def _pieces_in(self, content, length):
        """int32 [E, 4]: text, start, end and id of each piece in the texts string [F]."""
        longest = max(map(len, self._vocabulary.ids_by_content))
        start, size = tf.range(tf.maximum(tf.reduce_max(length), 0)), tf.range(1, longest + 1)
        most = tf.where(length > 1, length, 0)  # a space alone has no pieces
        fits = start[:, None] + size <= most[:, None, None]  # [F, N, longest]
        text, start, size = tf.unstack(tf.cast(tf.where(fits), tf.int32), axis=1)
        size += 1
        part = tf.strings.substr(tf.gather(content, text), start, size)
        spelled = tf.strings.regex_replace(part, " ", SPACE)
        ids = self._all(spelled, tf.zeros([0], tf.int32), tf.zeros([1], tf.int64)).ids
        parts = tf.stack([text, start, start + size, ids], axis=1)
        found = [tf.boolean_mask(parts, tf.gather(self._is_text(), ids))]
        if self._vocabulary.is_byte.any():
            one = size == 1
            byte = tf.reshape(tf.io.decode_raw(tf.boolean_mask(part, one), tf.uint8), [-1])
            ids = tf.gather(self._byte_ids(), tf.cast(byte, tf.int32))
            bytes_ = tf.concat([tf.boolean_mask(parts, one)[:, :3], ids[:, None]], axis=1)
            found.append(bytes_)
        return tf.concat(found, axis=0)

    def _is_text(self):
        """bool [V]: whether a piece is text, and not a byte or a control symbol."""
        is_byte, contents = self._vocabulary.is_byte, self._vocabulary.ids_by_content.values()
        return self._is_one_of({i for ids in contents for i in ids if not is_byte[i]})

    def _is_shown(self):
        """bool [V]: whether a piece has a text, and is not a control symbol."""
        return self._is_one_of({UNK, *itertools.chain(*self._vocabulary.ids_by_content.values())})

    def _is_one_of(self, pieces):
        """bool [V]; the graph stores only those that are not, because they are few."""
        others = np.array(sorted(set(range(self._vocabulary.size)) - pieces), np.int32)
        size = [self._vocabulary.size]
        return tf.scatter_nd(others[:, None], tf.ones_like(others), size) == 0

    def _byte_ids(self):
        """int32 [256]: the piece of each byte."""
        ids = np.zeros([256], np.int32)
        for content, pieces in self._vocabulary.ids_by_content.items():
            for i in pieces:
                if self._vocabulary.is_byte[i]:
                    ids[content[0]] = i
        return tf.constant(ids)
