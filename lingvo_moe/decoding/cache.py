"""The keys and values of hypotheses.

B sentences, K hypotheses of each, T steps, N heads, D size of a head.
C caches with P positions; Q hypotheses share one: C·Q = B·K, P = T·Q.

Caches are tensors [C, N, P, D]. In step t hypothesis k of a sentence writes to position
t·Q + k mod Q of the sentence's cache k // Q. There are two kinds:

    Q = K   One cache for the hypotheses of a sentence; nothing is moved. A mask gives the positions
            of each hypothesis (GShard's flat beam search). Attention is over all T·K positions.
    Q = 1   A cache for each hypothesis, copied from that of its parent in each step. Attention is
            over T positions. Samples and single hypotheses need no copies.
"""

from typing import Any

import tensorflow as tf

from lingvo_moe.nn.smart_cond import size_of, smart_cond


def own_positions(step: tf.Tensor, visible: tf.Tensor, sharing: int | tf.Tensor) -> tf.Tensor:
    """bool [1, K, P]: the position that each hypothesis writes in step t; `visible` [B, K, P] gives
    the shape, `sharing` is Q."""
    position = step * sharing + tf.range(size_of(visible, 1)) % sharing
    return (tf.range(tf.shape(visible)[2])[None] == position[:, None])[None]


def of_parents(
    caches: Any, parent: tf.Tensor, sharing: int | tf.Tensor, in_order: bool | tf.Tensor
) -> Any:
    """The caches for the next step: the same if hypotheses share them (Q > 1) or continue
    themselves in order, else those of the hypotheses that they continue, `parent` int32 [B, K].
    Caches are any structure of tensors [C, N, P, D]."""
    if tf.is_tensor(sharing) or sharing > 1:
        return caches

    def copy(cache):
        shape = tf.shape(cache)
        by_sentence = tf.reshape(cache, tf.concat([tf.shape(parent), shape[1:]], axis=0))
        return tf.reshape(tf.gather(by_sentence, parent, batch_dims=1), shape)

    return smart_cond(in_order, lambda: caches, lambda: tf.nest.map_structure(copy, caches))
