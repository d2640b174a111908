"""Policies for the keys and values of hypotheses.

B sentences, K hypotheses of each, T steps, N heads, D size of a head.
C caches with P positions; Q hypotheses share one: C·Q = B·K, P = T·Q.
"""

import abc
import dataclasses
from typing import Any

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveInt
from lingvo_moe.nn.smart_cond import size_of, smart_cond


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache(Params, abc.ABC):
    """A policy for the keys and values of hypotheses; translations do not depend on it.

    They are in C caches [C, N, P, D]. In step t hypothesis k of a sentence writes to position
    t·Q + k mod Q of the sentence's cache k // Q.
    """

    @abc.abstractmethod
    def sharing(self, beams: int | tf.Tensor) -> int | tf.Tensor:
        """Q for K hypotheses: K, or 1. K is a tensor in a graph for any beam size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat(Cache):
    """One cache [B, N, T·K, D] for the hypotheses of a sentence; nothing is moved.

    A mask gives the positions of each hypothesis (GShard's flat beam search). Attention is computed
    over all T·K positions.
    """

    def sharing(self, beams):
        return beams


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reordered(Cache):
    """A cache [B·K, N, T, D] for each hypothesis, copied from that of its parent in each step.

    Attention is computed over T positions. Samples and single hypotheses need no copies.
    """

    def sharing(self, beams):
        del beams
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByBeam(Cache):
    """Reordered for beams of at least `reordered_from`, else Flat. In a graph for any beam size,
    Flat. The default is measured on a CPU."""

    reordered_from: PositiveInt = 32

    def sharing(self, beams):
        return 1 if not tf.is_tensor(beams) and beams >= self.reordered_from else beams


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
