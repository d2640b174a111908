"""Multi-head attention.

B batch, T query length, L key length, N heads, D size of one head, A all heads (N·D), M model,
K hypotheses of a sentence, C caches with P positions, each of Q hypotheses.
"""

import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import PositiveInt, Rate
from lingvo_moe.core.layer import (
    Context,
    Layer,
    Normal,
    WeightSpec,
    bias_of,
    biases,
    dropout,
)
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.sharding import copies
from lingvo_moe.sharding.annotations import annotate

# Added to the logits of forbidden pairs: large enough for a probability of 0 in float32, small
# enough that a row of forbidden pairs alone (padding) is finite in bfloat16 too.
FORBIDDEN = -1e9


class KeysValues(NamedTuple):
    """Projected keys and values."""

    keys: tf.Tensor
    values: tf.Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """Dot-product attention with N heads (Vaswani et al. 2017).

    Attributes:
        model_dim: M.
        num_heads: N.
        head_dim: D.
        dropout_rate: on the attention probabilities.
        use_bias: whether the four projections add biases.
        scaled: whether the logits are scaled by 1/√D; otherwise the initial queries are.
    """

    model_dim: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    dropout_rate: Rate = 0.0
    use_bias: bool = False
    scaled: bool = False

    @property
    def width(self) -> int:
        """A."""
        return self.num_heads * self.head_dim

    def weights(self):
        """Theta: query, key, value [M, A] and output [A, M]; with biases `query_bias` [A] …."""
        m, a = self.model_dim, self.width
        query_stddev = (m if self.scaled else m * self.head_dim) ** -0.5
        weights = NestedMap(
            query=WeightSpec((m, a), Normal(query_stddev), "MA"),
            key=WeightSpec((m, a), Normal(m**-0.5), "MA"),
            value=WeightSpec((m, a), Normal(m**-0.5), "MA"),
            output=WeightSpec((a, m), Normal(a**-0.5), "AM"),
        )
        return NestedMap(weights | biases(weights)) if self.use_bias else weights

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        memory: tf.Tensor,
        bias: tf.Tensor,
        context: Context,
    ) -> tf.Tensor:
        """Attends from inputs to memory.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            memory: [B, L, M]; inputs themselves for self-attention.
            bias: float32, broadcasts to [B, N, T, L]; FORBIDDEN for masked positions.
            context: mode and randomness.

        Returns:
            [B, T, M].
        """
        if memory is inputs:
            queries, keys, values = self._heads(inputs, theta, ["query", "key", "value"], "BNTD")
        else:
            (queries,) = self._heads(inputs, theta, ["query"], "BNTD")
            keys, values = self._heads(memory, theta, ["key", "value"], "BNLD")
        queries = self._scale(queries)
        return self._mix(theta, queries, KeysValues(keys, values), bias, context)

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights for `step`: query_key_value [M, 3·A] and output [A, M], and their biases."""
        return self._side_by_side(theta, ["query", "key", "value"], ["output"])

    def lay_out_for_memory(self, theta: NestedMap) -> NestedMap:
        """The same for `project` and `attend`: query, key_value [M, 2·A] and output [A, M]."""
        return self._side_by_side(theta, ["query"], ["key", "value"], ["output"])

    def _side_by_side(self, theta, *groups):
        """The weights of each group side by side, under their joined names, queries scaled."""
        if self.scaled:
            queries = {name: self._scale(w) for name, w in theta.items() if "query" in name}
            theta = NestedMap(theta | queries)
        laid_out = NestedMap()
        for names in groups:
            joined = "_".join(names)
            laid_out[joined] = _concat([theta[name] for name in names])
            if self.use_bias:
                laid_out[bias_of(joined)] = _concat([theta[bias_of(name)] for name in names])
        return laid_out

    def project(self, laid_out: NestedMap, memory: tf.Tensor) -> KeysValues:
        """The keys [B, N, D, L] and values [B, N, L, D] of memory [B, L, M], for `attend`."""
        rows = tf.reshape(memory, [-1, self.model_dim])
        keys, values = self._step_heads(rows, laid_out, "key_value", tf.shape(memory)[1])
        return KeysValues(tf.transpose(keys, [0, 1, 3, 2]), values)

    def attend(
        self, laid_out: NestedMap, inputs: tf.Tensor, memory: KeysValues, bias: tf.Tensor, beam: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends from K hypotheses of each sentence to its keys and values from `project`.

        Args:
            laid_out: of `lay_out_for_memory`.
            inputs: [B·K, M].
            memory: of `project`.
            bias: float32, broadcasts to [B, N, K, L].
            beam: K.

        Returns:
            [B·K, M], and the probabilities [B, N, K, L].
        """
        (queries,) = self._step_heads(inputs, laid_out, "query", beam)
        return self._mix_rows(laid_out, tf.matmul(queries, memory.keys), memory.values, bias)

    def step(
        self,
        laid_out: NestedMap,
        inputs: tf.Tensor,
        cache: KeysValues,
        bias: tf.Tensor,
        start: tf.Tensor,
        sharing: int,
    ) -> tuple[tf.Tensor, KeysValues]:
        """Self-attention of the newest tokens of hypotheses.

        Args:
            laid_out: of `lay_out`.
            inputs: [C·Q, M].
            cache: keys and values of all earlier steps, [C, N, P, D].
            bias: float32, broadcasts to [C, N, Q, P].
            start: int32 [], the first of the Q positions for the new keys and values.
            sharing: Q.

        Returns:
            [C·Q, M], and the cache with the new keys and values.
        """
        queries, *new = self._step_heads(inputs, laid_out, "query_key_value", sharing)
        cache = KeysValues(
            *(write_cache(old, part, start) for old, part in zip(cache, new, strict=True))
        )
        logits = tf.matmul(queries, cache.keys, transpose_b=True)
        return self._mix_rows(laid_out, logits, cache.values, bias)[0], cache

    def _step_heads(self, rows, laid_out, name, length):
        """rows [B·T, M] times concatenated weights [M, A]: [B, N, T, D] for each weight."""
        projected = _project(rows, laid_out, name)
        heads = tf.reshape(
            projected, [-1, length, projected.shape[-1] // self.head_dim, self.head_dim]
        )
        # tf.stack instead of a transpose, which is several times slower with oneDNN.
        each = tf.unstack(heads, axis=2)
        starts = range(0, len(each), self.num_heads)
        stacks = (tf.stack(each[start : start + self.num_heads], axis=1) for start in starts)
        return [annotate(stack, "BNTD") for stack in stacks]

    def _mix_rows(self, laid_out, logits, values, bias):
        """[B·T, M] and probabilities, of logits [B, N, T, L] and values [B, N, L, D]."""
        probs = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32) + bias), values.dtype)
        each = tf.unstack(tf.matmul(probs, values), self.num_heads, axis=1)
        rows = tf.reshape(tf.stack(each, axis=2), [-1, laid_out.output.shape[0]])
        return _project(rows, laid_out, "output"), probs

    def _mix(self, theta, queries, memory, bias, context):
        """[B, T, M], of queries [B, N, T, D]."""
        logits = tf.cast(tf.matmul(queries, memory.keys, transpose_b=True), tf.float32)
        probs = tf.cast(tf.nn.softmax(logits + bias), queries.dtype)
        probs = dropout(annotate(probs, "BNTL"), self.dropout_rate, context)
        mixed = tf.transpose(tf.matmul(probs, memory.values), [0, 2, 1, 3])
        mixed = tf.reshape(
            mixed, tf.concat([tf.shape(mixed)[:2], [theta.output.shape[-2]]], axis=0)
        )
        outputs = copies.einsum("BTA,AM->BTM", mixed, theta.output)
        if self.use_bias:
            outputs += copies.per_row(theta.output_bias, 1, outputs)
        return annotate(outputs, "BTM")

    def _scale(self, queries):
        """The same times D^-1/2, if scaled."""
        return queries * tf.cast(self.head_dim**-0.5, queries.dtype) if self.scaled else queries

    def _heads(self, inputs, theta, names, dims):
        """inputs [B, T, M] times each of the weights [M, A] in one product: [B, N, T, D] each."""
        # keeps the sharding of A, unlike a concatenation.
        stacked = tf.stack([theta[name] for name in names], axis=-2)
        projected = copies.einsum("BTM,MKA->BTKA", inputs, stacked)
        if self.use_bias:
            stacked = tf.stack([theta[bias_of(name)] for name in names], axis=-2)
            projected += copies.per_row(stacked, 2, projected)
        heads = [len(names), self.num_heads, self.head_dim]
        projected = tf.reshape(projected, tf.concat([tf.shape(inputs)[:2], heads], axis=0))
        by_weight = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]))
        return [annotate(heads, dims) for heads in by_weight]


def _project(rows, laid_out, name):
    """rows [R, M] times a weight that is laid out, plus its bias if there is one."""
    projected, bias = tf.matmul(rows, laid_out[name]), laid_out.get(bias_of(name))
    return projected if bias is None else tf.nn.bias_add(projected, bias)


def _concat(weights):
    return tf.concat(weights, axis=-1) if len(weights) > 1 else weights[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias(Layer):
    """A learned bias for each head and bucketed distance (Raffel et al. 2020, section 2.1).

    Half of the buckets of a direction are for one distance each; the width of the others grows
    logarithmically up to max_distance. All larger distances are in the last bucket.

    Attributes:
        num_heads: N.
        bidirectional: whether keys after the query have separate buckets.
        num_buckets: number of buckets of both directions.
        max_distance: start of the last bucket.
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

        [D, N, T, L] of a bias with D copies (sharding/copies.py).
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


def segment_bias(query_segments: tf.Tensor, key_segments: tf.Tensor) -> tf.Tensor:
    """FORBIDDEN between different sentences of a packed row and towards padding, else 0.

    Args:
        query_segments: int32 [B, T]; 0 is padding.
        key_segments: int32 [B, L].

    Returns:
        float32 [B, 1, T, L].
    """
    same = tf.equal(query_segments[:, :, None], key_segments[:, None, :])
    same &= tf.not_equal(key_segments, 0)[:, None, :]
    return tf.where(same, 0.0, FORBIDDEN)[:, None]


def causal_bias(length: int | tf.Tensor) -> tf.Tensor:
    """FORBIDDEN towards later positions, else 0; float32 [T, T]."""
    position = tf.range(length)
    return tf.where(position[None, :] <= position[:, None], 0.0, FORBIDDEN)


def write_cache(cache: tf.Tensor, new: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """A cache of keys or values with new ones written to it.

    Args:
        cache: [C, N, P, D].
        new: [C, N, Q, D].
        start: int32 [], the first of the Q positions to write; Q divides start and P.
    """
    if cache.shape.is_fully_defined():  # XLA cannot update in place at a variable position
        positions, sharing = cache.shape[2], new.shape[2]
        here = tf.range(positions) // sharing == start // sharing
        return tf.where(here[:, None], tf.tile(new, [1, 1, positions // sharing, 1]), cache)
    # In two dimensions this takes half the time of four.
    batch, heads, positions, size = tf.unstack(tf.shape(cache))
    rows, count = batch * heads, tf.shape(new)[2]
    updated = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(cache, [rows, positions * size]),
        begin=tf.stack([0, start * size]),
        end=tf.stack([rows, (start + count) * size]),
        strides=[1, 1],
        value=tf.reshape(new, [rows, count * size]),
    )
    return tf.reshape(updated, tf.shape(cache))
