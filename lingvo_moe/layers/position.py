"""Position encodings.  B batch, T length, L key length, N heads, D size of a head, M model."""

import abc
import dataclasses
import math

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeInt, Params, PositiveFloat, PositiveInt
from lingvo_moe.nn.layer import Layer, Normal, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias(Layer):
    """A learned bias for each head and bucketed distance (Raffel et al. 2020, section 2.1).

    Half of the buckets of a direction are for one distance each; the width of the others grows
    logarithmically up to max_distance. All larger distances are in the last bucket.

    Attributes:
        num_heads: N.
        bidirectional: whether keys after the query have separate buckets.
        num_buckets: number of buckets of both directions.
        max_distance: distances from here on are all in the last bucket.
    """

    num_heads: PositiveInt
    bidirectional: bool
    num_buckets: PositiveInt = 32
    max_distance: PositiveInt = 128

    def weights(self):
        """Theta: bias [num_buckets, N]."""
        return NestedMap(bias=WeightSpec((self.num_buckets, self.num_heads), Normal(0.1), "KN"))

    def fprop(self, theta: NestedMap, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The bias float32 [N, T, L] for query positions int32 [T] and key positions int32 [L].

        [D, N, T, L] of a bias with D copies (sbp/copies.py).
        """
        buckets = self.bucket(key[None, :] - query[:, None])
        by_pair = tf.gather(tf.cast(theta.bias, tf.float32), buckets, axis=-2)
        return tf.einsum("...TLN->...NTL", by_pair)

    def by_distance(self, theta: NestedMap) -> tf.Tensor:
        """float32 [N, max_distance + 1]: the bias of keys 0, 1, … before the query.

        Keys further away have the bias of max_distance.
        """
        furthest = tf.constant([self.max_distance])
        return self.fprop(theta, furthest, tf.range(self.max_distance, -1, -1))[:, 0]

    def bucket(self, offset: tf.Tensor) -> tf.Tensor:
        """The bucket of each offset (key position - query position), int32, same shape."""
        buckets, first = self.num_buckets, tf.zeros_like(offset)
        if self.bidirectional:
            buckets //= 2
            first = tf.where(offset > 0, buckets, 0)
        else:
            offset = tf.minimum(offset, 0)
        distance = tf.abs(offset)
        exact = buckets // 2
        # Distances below `exact` use the other branch; the maximum only avoids log(0).
        ratio = tf.cast(tf.maximum(distance, exact), tf.float32) / exact
        scale = (buckets - exact) / math.log(self.max_distance / exact)
        wide = exact + tf.cast(tf.math.log(ratio) * scale, tf.int32)
        return first + tf.where(distance < exact, distance, tf.minimum(wide, buckets - 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position(Params, abc.ABC):
    """A policy that encodes the positions of tokens; `Position()` encodes none, so the model knows
    only the decoder's mask of later tokens."""

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

    def place(self, heads: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Changes the queries or keys of self-attention by their positions.

        Args:
            heads: [B, N, T, D].
            positions: int32 [B, T], or [] for all; each token's index in its sentence, from 0.
        """
        del positions
        return heads


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary(Position):
    """Pairs of numbers of queries and keys are turned by their position (Su et al. 2021, RoFormer).

    So the product of a query and a key depends on their distance (arXiv 2104.09864, section
    3.2.2). The first number of a pair is in the first half of a head, the second in the other half.

    Attributes:
        base: the wavelengths of the D/2 pairs go from 2π to nearly base · 2π.
    """

    base: PositiveFloat = 10_000.0

    def place(self, heads, positions):
        half = heads.shape[-1] // 2
        frequencies = self.base ** -(np.arange(half, dtype=np.float32) / half)
        angles = tf.cast(positions, tf.float32)[..., None] * frequencies
        if positions.shape.rank:
            angles = angles[:, None]  # of all heads
        sine, cosine = (tf.cast(f(angles), heads.dtype) for f in (tf.sin, tf.cos))
        x, y = heads[..., :half], heads[..., half : 2 * half]
        return tf.concat([x * cosine - y * sine, y * cosine + x * sine, heads[..., 2 * half :]], -1)
