"""Multi-head attention.

B batch, T query length, L key length, N heads, n heads of keys and values, D size of one head, A
all heads (N·D), a those of keys (n·D), M model, K hypotheses of a sentence, C caches with P
positions, each of Q hypotheses.
"""

import abc
import dataclasses
import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveInt, Rate
from lingvo_moe.layers.position import Position
from lingvo_moe.nn.layer import (
    Context,
    Layer,
    Normal,
    WeightSpec,
    bias_of,
    biases,
    dropout,
)
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.sbp import copies

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

    Each head of keys and values serves N/n heads of queries (Ainslie et al. 2023, arXiv
    2305.13245); the N heads are in order of those that they share.

    Attributes:
        model_dim: M.
        num_heads: N.
        head_dim: D.
        num_key_heads: n; None for N.
        position: what self-attention does to queries and keys at their positions.
        dropout_rate: on the attention probabilities.
        use_bias: whether the four projections add biases.
        scaled: whether the logits are scaled by 1/√D; otherwise the initial queries are.
    """

    model_dim: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    num_key_heads: PositiveInt | None = None
    position: Position = Position()
    dropout_rate: Rate = 0.0
    use_bias: bool = False
    scaled: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_heads % self.key_heads:
            raise ValueError(
                f"Heads of keys must divide the {self.num_heads} heads, got {self.key_heads}."
            )

    @property
    def key_heads(self) -> int:
        """n."""
        return self.num_key_heads or self.num_heads

    @property
    def width(self) -> int:
        """A."""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """a."""
        return self.key_heads * self.head_dim

    def weights(self):
        """Theta: query [M, A], key, value [M, a], output [A, M]; biases `query_bias` [A] …."""
        m, a = self.model_dim, self.width
        query_stddev = (m if self.scaled else m * self.head_dim) ** -0.5
        weights = NestedMap(
            query=WeightSpec((m, a), Normal(query_stddev), "MA"),
            key=WeightSpec((m, self.key_width), Normal(m**-0.5), "MA"),
            value=WeightSpec((m, self.key_width), Normal(m**-0.5), "MA"),
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
        tokens: Tokens | None = None,
    ) -> tf.Tensor:
        """Attends from inputs to memory.

        Args:
            theta: as `weights`; for self-attention also as of `lay_out_for_sequences`.
            inputs: [B, T, M].
            memory: [B, L, M]; inputs themselves for self-attention.
            bias: float32, broadcasts to [B, N, T, L]; FORBIDDEN for masked positions.
            context: mode and randomness.
            tokens: [B, T] of self-attention, for its positions.

        Returns:
            [B, T, M].
        """
        if memory is inputs:
            each = (self._heads(inputs, theta, names) for names in self._at_once)
            queries, keys, values = itertools.chain(*each)
        else:
            (queries,) = self._heads(inputs, theta, ["query"])
            keys, values = self._heads(memory, theta, ["key", "value"])
        if memory is inputs and tokens:
            queries, keys = (self.position.place(x, tokens.positions) for x in (queries, keys))
        queries = self._scale(queries)
        return self._mix(theta, queries, KeysValues(keys, values), bias, context)

    def probabilities(self, logits: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """What queries attend to, float32 [B, N, T, L]: the same in training and decoding.

        Args:
            logits: [B, N, T, L], products of queries and keys.
            bias: float32, broadcasts to them.
        """
        return tf.nn.softmax(tf.cast(logits, tf.float32) + bias)

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights for `step`: query_key_value [M, A + 2·a], output [A, M], and biases."""
        return self._side_by_side(theta, ["query", "key", "value"], ["output"])

    def lay_out_for_memory(self, theta: NestedMap) -> NestedMap:
        """The same for `project` and `attend`: query, key_value [M, 2·a], output [A, M]."""
        return self._side_by_side(theta, ["query"], ["key", "value"], ["output"])

    def lay_out_for_sequences(self, theta: NestedMap) -> NestedMap:
        """The same for `fprop`: the weights of a product of self-attention stacked, [M, 3, A]."""
        groups = self._at_once
        if self.use_bias:
            groups = [*groups, *([bias_of(name) for name in names] for names in groups)]
        stacked = {name for names in groups for name in names}
        own = {name: weight for name, weight in theta.items() if name not in stacked}
        return NestedMap(own | {_joined(names): _stacked(theta, names) for names in groups})

    @property
    def _at_once(self):
        """The weights that self-attention multiplies in one product: those of one size."""
        if self.key_heads == self.num_heads:
            return [["query", "key", "value"]]
        return [["query"], ["key", "value"]]

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
        """The keys [B, n, D, L] and values [B, n, L, D] of memory [B, L, M], for `attend`."""
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
        logits = self._by_query(tf.matmul(self._by_key(queries), memory.keys), beam)
        return self._mix_rows(laid_out, logits, memory.values, bias)

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
            cache: keys and values of all earlier steps, [C, n, P, D].
            bias: float32, broadcasts to [C, N, Q, P].
            start: int32 [], the first of the Q positions for the new keys and values.
            sharing: Q.

        Returns:
            [C·Q, M], and the cache with the new keys and values.
        """
        queries, keys, values = self._step_heads(inputs, laid_out, "query_key_value", sharing)
        queries, keys = (self.position.place(x, start // sharing) for x in (queries, keys))
        cache = KeysValues(
            write_cache(cache.keys, keys, start), write_cache(cache.values, values, start)
        )
        logits = tf.matmul(self._by_key(queries), cache.keys, transpose_b=True)
        logits = self._by_query(logits, sharing)
        return self._mix_rows(laid_out, logits, cache.values, bias)[0], cache

    def _step_heads(self, rows, laid_out, name, length):
        """rows [B·T, M] times weights side by side: [B, N or n, T, D] for each weight."""
        projected = _project(rows, laid_out, name)
        heads = tf.reshape(
            projected, [-1, length, projected.shape[-1] // self.head_dim, self.head_dim]
        )
        # tf.stack instead of a transpose, which is several times slower with oneDNN.
        each = tf.unstack(heads, axis=2)
        counts = [self.num_heads if one == "query" else self.key_heads for one in name.split("_")]
        ends = list(itertools.accumulate(counts))
        parts = (each[end - count : end] for count, end in zip(counts, ends, strict=True))
        return [tf.stack(part, axis=1) for part in parts]

    def _by_key(self, heads):
        """[B, N, T, …] as [B, n, (N/n)·T, …]: the queries of each head of keys."""
        return self._regrouped(heads, self.key_heads, -1)

    def _by_query(self, heads, length):
        """The inverse, for queries of this length."""
        return self._regrouped(heads, self.num_heads, length)

    def _regrouped(self, heads, count, length):
        if self.key_heads == self.num_heads:
            return heads
        return tf.reshape(heads, [tf.shape(heads)[0], count, length, size_of(heads, 3)])

    def _mix_rows(self, laid_out, logits, values, bias):
        """[B·T, M] and probabilities, of logits [B, N, T, L] and values [B, n, L, D]."""
        probs = tf.cast(self.probabilities(logits, bias), values.dtype)
        mixed = self._by_query(tf.matmul(self._by_key(probs), values), size_of(logits, 2))
        each = tf.unstack(mixed, self.num_heads, axis=1)
        rows = tf.reshape(tf.stack(each, axis=2), [-1, laid_out.output.shape[0]])
        return _project(rows, laid_out, "output"), probs

    def _mix(self, theta, queries, memory, bias, context):
        """[B, T, M], of queries [B, N, T, D]."""
        length = size_of(queries, 2)
        logits = tf.matmul(self._by_key(queries), memory.keys, transpose_b=True)
        probs = self.probabilities(self._by_query(logits, length), bias)
        probs = tf.cast(probs, queries.dtype)
        probs = dropout(probs, self.dropout_rate, context)
        mixed = self._by_query(tf.matmul(self._by_key(probs), memory.values), length)
        mixed = tf.transpose(mixed, [0, 2, 1, 3])
        mixed = tf.reshape(
            mixed, tf.concat([tf.shape(mixed)[:2], [theta.output.shape[-2]]], axis=0)
        )
        outputs = copies.einsum("BTA,AM->BTM", mixed, theta.output)
        if self.use_bias:
            outputs += copies.per_row(theta.output_bias, 1, outputs)
        return outputs

    def _scale(self, queries):
        """The same times D^-1/2, if scaled."""
        return queries * tf.cast(self.head_dim**-0.5, queries.dtype) if self.scaled else queries

    def _heads(self, inputs, theta, names):
        """inputs [B, T, M] times weights of one size in one product: [B, N or n, T, D] each."""
        stacked = _stacked(theta, names)
        projected = copies.einsum("BTM,MKA->BTKA", inputs, stacked)
        if self.use_bias:
            stacked_biases = _stacked(theta, [bias_of(name) for name in names])
            projected += copies.per_row(stacked_biases, 2, projected)
        heads = [len(names), stacked.shape[-1] // self.head_dim, self.head_dim]
        projected = tf.reshape(projected, tf.concat([tf.shape(inputs)[:2], heads], axis=0))
        return tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionParams(Params, abc.ABC):
    """The kind of attention of a model's layers: a policy."""

    @abc.abstractmethod
    def layer(self, **sizes: Any) -> Attention:
        """The layer.

        Args:
            **sizes: model_dim, num_heads, head_dim, position, dropout_rate, use_bias and scaled of
                `Attention`.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(AttentionParams):
    """`Attention` as it is.

    Attributes:
        key_heads: n, heads of keys and values, each for several heads of queries: grouped-query
            attention, with smaller caches. None for as many as there are heads.
    """

    key_heads: PositiveInt | None = None

    def layer(self, **sizes):
        return Attention(num_key_heads=self.key_heads, **sizes)


def _project(rows, laid_out, name):
    """rows [R, M] times a weight that is laid out, plus its bias if there is one."""
    projected, bias = tf.matmul(rows, laid_out[name]), laid_out.get(bias_of(name))
    return projected if bias is None else tf.nn.bias_add(projected, bias)


def _stacked(theta, names):
    """Weights of one size as one, [M, K, A], or biases [K, A]: laid out, or stacked here."""
    if (laid_out := theta.get(_joined(names))) is not None:
        return laid_out
    # keeps the sharding of A, unlike a concatenation.
    return tf.stack([theta[name] for name in names], axis=-2)


def _joined(names):
    return "stacked_" + "_".join(names)


def _concat(weights):
    return tf.concat(weights, axis=-1) if len(weights) > 1 else weights[0]


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
