"""Position encodings.  B batch, T length, N heads, M model."""

import abc
import dataclasses
import math

import numpy as np
import tensorflow as tf

from lingvo_moe.core.fields import NonNegativeInt, Params
from lingvo_moe.layers.attention import RelativeBias
from lingvo_moe.layers.tokens import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position(Params, abc.ABC):
    """A policy that encodes the positions of tokens."""

    def relative_bias(self, num_heads: int, bidirectional: bool) -> RelativeBias | None:
        """The bias of self-attention, shared by the layers of a stack; None for none."""
        del num_heads, bidirectional
        return None

    def encode(self, embedded: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Adds positions to embeddings.

        Args:
            embedded: [..., M].
            positions: int32, broadcasts to [...]; each token's index in its sentence, from 0.
        """
        del positions
        return embedded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relative(Position):
    """A learned bias of the attention, see RelativeBias."""

    def relative_bias(self, num_heads, bidirectional):
        return RelativeBias(num_heads=num_heads, bidirectional=bidirectional)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinusoidal(Position):
    """Sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5).

    As in fairseq, all sines come before all cosines, and the wavelengths form a geometric
    progression from 2π to exactly 10000 · 2π. Nothing limits the length.

    Attributes:
        first: the position of a sentence's first token; fairseq's is 2.
    """

    first: NonNegativeInt = 0

    def encode(self, embedded, positions):
        half, odd = divmod(embedded.shape[-1], 2)
        step = np.float32(-math.log(10000.0) / max(half - 1, 1))
        frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
        angles = tf.cast(positions + self.first, tf.float32)[..., None] * frequencies
        table = tf.concat([tf.sin(angles), tf.cos(angles), angles[..., :odd] * 0.0], axis=-1)
        return embedded + tf.cast(table, embedded.dtype)


def positions_in_sentences(tokens: Tokens) -> tf.Tensor:
    """int32 [B, T]: the index of each token in its sentence, from 0; rows may be packed."""
    segments, place = tokens.segments, tf.range(tf.shape(tokens.segments)[1])
    before = place[None, :] < place[:, None]
    same = tf.equal(segments[:, :, None], segments[:, None, :])
    return tf.reduce_sum(tf.cast(same & before, tf.int32), axis=-1)
