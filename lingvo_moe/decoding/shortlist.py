"""Products over a part of the target vocabulary.

B sentences, L source length, V vocabulary, W its size with padding, C candidates of a source piece,
F candidates of a language, T target languages, U tokens listed for any sentence of a batch.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lingvo_moe.decoding.params import MAX_BEAM
from lingvo_moe.nn.special_tokens import UNK

_LEAST = MAX_BEAM + UNK + 1  # tokens among which a search can always choose


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """The target tokens that a translation may have, by the pieces and the tag of its source."""

    # int32 [V source, C], the candidates of each source piece, then PAD. PAD has none.
    by_piece: np.ndarray
    by_language: np.ndarray  # int32 [T, F], those of each target language, then PAD
    tags: np.ndarray  # int32 [T], the languages' tags

    def select(
        self, source_ids: tf.Tensor, size: int, always: tf.Tensor | Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The tokens listed for a batch int32 [B, L], the tag first; those of a sentence do not
        depend on the others. All sentences may have the ids of `always`; W is `size`.

        Returns:
            int32 [U] ids in order, PAD, BOS, EOS and UNK first, and some for a search to choose
            from; bool [B, U], which of them each sentence may have.
        """
        batch = tf.shape(source_ids)[0]
        language = tf.argmax(tf.cast(source_ids[:, :1] == self.tags, tf.int32), axis=1)
        listed = tf.concat(
            [
                tf.reshape(tf.gather(self.by_piece, source_ids), [batch, -1]),
                tf.gather(self.by_language, language),
                tf.tile(tf.convert_to_tensor(always, tf.int32)[None], [batch, 1]),
            ],
            axis=1,
        )
        cells = tf.reshape(tf.range(batch)[:, None] * size + listed, [-1])
        counts = tf.math.unsorted_segment_sum(tf.ones_like(cells), cells, batch * size)
        ids = tf.range(size)
        allowed = (tf.reshape(counts, [batch, size]) > 0) | (ids <= UNK)
        used = tf.reduce_any(allowed, axis=0) | (ids < _LEAST)
        return tf.boolean_mask(ids, used), tf.boolean_mask(allowed, used, axis=1)
