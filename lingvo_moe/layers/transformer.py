"""The MoE Transformer encoder-decoder.

B batch, T target length, L source length, K living hypotheses, P flat cache positions, N heads,
M model, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context, Layer, dropout, layer_names
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.layers.activation import Activation, ReLU
from lingvo_moe.layers.attention import (
    Attention,
    KeysValues,
    RelativeBias,
    causal_bias,
    segment_bias,
)
from lingvo_moe.layers.embedding import Embedding
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.layers.moe import MoE, MoEParams
from lingvo_moe.layers.norm import RMSNorm
from lingvo_moe.sharding.annotations import annotate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerParams:
    """The shape of an encoder-decoder (GShard section 4).

    Attributes:
        num_encoder_layers, num_decoder_layers: the paper's 36L is 18 + 18.
        model_dim: M.
        hidden_dim: H of the dense feed-forward layers and, unless moe says otherwise, of experts.
        num_heads: N.
        head_dim: D.
        moe: the Mixture-of-Experts layers; None for a dense model.
        dropout_rate: on embeddings, residual branches and attention probabilities.
        shared_embedding: one table for both sides; it wants one vocabulary for both.
        activation: of the feed-forward layers and, unless moe says otherwise, of experts.
    """

    num_encoder_layers: int
    num_decoder_layers: int
    model_dim: int
    hidden_dim: int
    num_heads: int
    head_dim: int
    moe: MoEParams | None = None
    dropout_rate: float = 0.1
    shared_embedding: bool = False
    activation: Activation = ReLU()

    def __post_init__(self):
        for name in ("num_encoder_layers", "num_decoder_layers", "model_dim", "hidden_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}.")


class StackOutput(NamedTuple):
    """What a stack of layers gives.

    Attributes:
        outputs: [B, T, M].
        moe_loss: float32 [], the weighted losses of its MoE layers, summed.
        stats: MoE layer -> statistics as in MoEOutput.
    """

    outputs: tf.Tensor
    moe_loss: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayer(Layer):
    """Pre-norm: self-attention, attention to the source (decoder only), feed-forward or MoE."""

    params: TransformerParams
    is_decoder: bool
    is_moe: bool

    @property
    def norm(self) -> RMSNorm:
        """The normalisation in front of each branch."""
        return RMSNorm(model_dim=self.params.model_dim)

    @property
    def attention(self) -> Attention:
        """Serves self-attention and attention to the source alike; theta tells them apart."""
        p = self.params
        return Attention(
            model_dim=p.model_dim,
            num_heads=p.num_heads,
            head_dim=p.head_dim,
            dropout_rate=p.dropout_rate,
        )

    @property
    def feed_forward(self) -> FeedForward | MoE:
        """The last branch."""
        p = self.params
        if self.is_moe:
            return MoE(
                model_dim=p.model_dim,
                hidden_dim=p.moe.hidden_dim or p.hidden_dim,
                params=p.moe.of_decoder() if self.is_decoder else p.moe,
                activation=p.activation,
            )
        return FeedForward(model_dim=p.model_dim, hidden_dim=p.hidden_dim, activation=p.activation)

    def weights(self):
        """Theta: self_attention, cross_attention (decoder), feed_forward, and a norm for each."""
        branches = NestedMap(self_attention=self.attention, feed_forward=self.feed_forward)
        if self.is_decoder:
            branches.cross_attention = self.attention
        weights = branches.map(lambda layer: layer.weights())
        return NestedMap(weights, norms=branches.map(lambda _: self.norm.weights()))

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        bias: tf.Tensor,
        mask: tf.Tensor,
        context: Context,
        memory: tf.Tensor | None = None,
        memory_bias: tf.Tensor | None = None,
        token_ids: tf.Tensor | None = None,
    ) -> StackOutput:
        """One layer over whole sequences.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            bias: float32, broadcasts to [B, N, T, T].
            mask: bool [B, T], false for padding.
            context: mode and randomness.
            memory: [B, L, M], the encoder's outputs (decoder only).
            memory_bias: float32, broadcasts to [B, N, T, L] (decoder only).
            token_ids: int32 [B, T], for gatings that route by them.
        """
        x = self._attention_branch("self_attention", theta, inputs, None, bias, context)
        if self.is_decoder:
            x = self._attention_branch("cross_attention", theta, x, memory, memory_bias, context)
        return self._feed_forward_branch(theta, x, mask, context, token_ids)

    def step(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        cache: KeysValues,
        bias: tf.Tensor,
        memory: KeysValues,
        memory_bias: tf.Tensor,
        update,
        token_ids: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, KeysValues]:
        """One layer for one step of decoding, K hypotheses of each sentence at a time.

        Args:
            theta: as `weights`.
            inputs: [B, K, M].
            cache: keys and values of all earlier steps, flat: [B, N, P, D].
            bias: float32 [B, N or 1, K, P].
            memory: the source's keys and values, [B, N, L, D].
            memory_bias: float32 [B, 1, 1, L].
            update: (cache [B, N, P, D], new [B, N, K, D]) -> cache with the new entries in place.
            token_ids: int32 [B, K], for gatings that route by them.

        Returns:
            outputs [B, K, M] and the updated cache.
        """
        norms = theta.norms
        x = self.norm.fprop(norms.self_attention, inputs)
        new = self.attention.project(theta.self_attention, x)
        cache = KeysValues(update(cache.keys, new.keys), update(cache.values, new.values))
        x = inputs + self.attention.attend(theta.self_attention, x, cache, bias, EVALUATION)
        y = self.norm.fprop(norms.cross_attention, x)
        x += self.attention.attend(theta.cross_attention, y, memory, memory_bias, EVALUATION)
        everyone = tf.ones(tf.shape(x)[:2], tf.bool)
        output = self._feed_forward_branch(theta, x, everyone, EVALUATION, token_ids)
        return output.outputs, cache

    def _attention_branch(self, name, theta, inputs, memory, bias, context):
        context = context.fold(name)
        x = self.norm.fprop(theta.norms[name], inputs)
        memory = x if memory is None else memory
        x = self.attention.fprop(theta[name], x, memory, bias, context.fold("probs"))
        return inputs + dropout(x, self.params.dropout_rate, context)

    def _feed_forward_branch(self, theta, inputs, mask, context, token_ids):
        context = context.fold("feed_forward")
        x = self.norm.fprop(theta.norms.feed_forward, inputs)
        moe_loss, stats = tf.constant(0.0), NestedMap()
        if self.is_moe:
            x, moe_loss, stats = self.feed_forward.fprop(
                theta.feed_forward, x, mask, context.fold("gating"), token_ids
            )
        else:
            flat = tf.reshape(x, [-1, self.params.model_dim])
            x = tf.reshape(self.feed_forward.fprop(theta.feed_forward, flat), tf.shape(x))
        x = dropout(x, self.params.dropout_rate, context)
        return StackOutput(annotate(inputs + x, "BTM"), moe_loss, stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(Layer):
    """The encoder or the decoder: embedding, relative bias, layers, final norm."""

    params: TransformerParams
    vocab_size: int
    is_decoder: bool

    @property
    def embedding(self) -> Embedding:
        """The token table of this side."""
        return Embedding(vocab_size=self.vocab_size, model_dim=self.params.model_dim)

    @property
    def relative_bias(self) -> RelativeBias:
        """Shared by the layers of the stack."""
        return RelativeBias(num_heads=self.params.num_heads, bidirectional=not self.is_decoder)

    @property
    def norm(self) -> RMSNorm:
        """The normalisation of the stack's output."""
        return RMSNorm(model_dim=self.params.model_dim)

    @property
    def layers(self) -> dict[str, TransformerLayer]:
        """Name -> layer; every moe.every_n-th is an MoE layer."""
        p = self.params
        count = p.num_decoder_layers if self.is_decoder else p.num_encoder_layers
        return {
            name: TransformerLayer(
                params=p,
                is_decoder=self.is_decoder,
                is_moe=p.moe is not None and (i + 1) % p.moe.every_n == 0,
            )
            for i, name in enumerate(layer_names("layer", count))
        }

    def weights(self):
        """Theta: embedding, relative_bias, layer_00 …, norm."""
        parts = NestedMap(
            embedding=self.embedding, relative_bias=self.relative_bias, norm=self.norm
        )
        return NestedMap(parts | self.layers).map(lambda layer: layer.weights())

    def fprop(
        self,
        theta: NestedMap,
        ids: tf.Tensor,
        segments: tf.Tensor,
        context: Context,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
    ) -> StackOutput:
        """The stack over whole, possibly packed, sequences.

        Args:
            theta: as `weights`.
            ids: int32 [B, T].
            segments: int32 [B, T], which sentence of the row each token belongs to; 0 is padding.
            context: mode and randomness.
            memory: [B, L, M], the encoder's outputs (decoder only).
            memory_segments: int32 [B, L] (decoder only).
        """
        x = annotate(self.embedding.lookup(theta.embedding, ids), "BTM")
        x = dropout(x, self.params.dropout_rate, context.fold("embedding"))
        position = tf.range(tf.shape(ids)[1])
        bias = segment_bias(segments, segments)
        bias += self.relative_bias.fprop(theta.relative_bias, position, position)
        if self.is_decoder:
            bias += causal_bias(tf.shape(ids)[1])
        memory_bias = segment_bias(segments, memory_segments) if self.is_decoder else None
        moe_loss, stats = tf.constant(0.0), NestedMap()
        for name, layer in self.layers.items():
            x, layer_loss, layer_stats = layer.fprop(
                theta[name], x, bias, segments != 0, context.fold(name), memory, memory_bias, ids
            )
            moe_loss += layer_loss
            if layer.is_moe:
                stats[name] = layer_stats
        x = dropout(self.norm.fprop(theta.norm, x), self.params.dropout_rate, context.fold("out"))
        return StackOutput(x, moe_loss, stats)


class Source(NamedTuple):
    """An encoded batch of sentences: keys and values for each decoder layer, and their mask."""

    memories: dict[str, KeysValues]
    bias: tf.Tensor  # float32 [B, 1, 1, L]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transformer(Layer):
    """Encoder and decoder with separate vocabularies.

    Attributes:
        params: the shape.
        source_vocab_size, target_vocab_size: V of each side.

    Raises:
        ValueError: the embedding is shared and the sizes differ.
    """

    params: TransformerParams
    source_vocab_size: int
    target_vocab_size: int

    def __post_init__(self):
        if self.params.shared_embedding and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"A shared embedding needs one vocabulary size, got {self.source_vocab_size} and "
                f"{self.target_vocab_size}. Prepare the data with --joint_vocab."
            )

    @property
    def encoder(self) -> Stack:
        """Source side."""
        return Stack(params=self.params, vocab_size=self.source_vocab_size, is_decoder=False)

    @property
    def decoder(self) -> Stack:
        """Target side; its embedding is also the softmax."""
        return Stack(params=self.params, vocab_size=self.target_vocab_size, is_decoder=True)

    def weights(self):
        """Theta: encoder, decoder; the decoder has no embedding of its own where it is shared."""
        weights = NestedMap(encoder=self.encoder.weights(), decoder=self.decoder.weights())
        if self.params.shared_embedding:
            del weights.decoder["embedding"]
        return weights

    def _decoder_theta(self, theta):
        if self.params.shared_embedding:
            return NestedMap(theta.decoder, embedding=theta.encoder.embedding)
        return theta.decoder

    def fprop(
        self,
        theta: NestedMap,
        source_ids: tf.Tensor,
        source_segments: tf.Tensor,
        target_ids: tf.Tensor,
        target_segments: tf.Tensor,
        context: Context,
    ) -> StackOutput:
        """Teacher-forced logits.

        Args:
            theta: as `weights`.
            source_ids: int32 [B, L].
            source_segments: int32 [B, L]; 0 is padding.
            target_ids: int32 [B, T], shifted right: what the decoder reads.
            target_segments: int32 [B, T]; the same number on both sides marks a sentence pair.
            context: mode and randomness.

        Returns:
            outputs float32 [B, T, V]; moe_loss and stats of both stacks.
        """
        encoded = self.encoder.fprop(
            theta.encoder, source_ids, source_segments, context.fold("encoder")
        )
        theta_decoder = self._decoder_theta(theta)
        decoded = self.decoder.fprop(
            theta_decoder,
            target_ids,
            target_segments,
            context.fold("decoder"),
            encoded.outputs,
            source_segments,
        )
        logits = self.decoder.embedding.logits(theta_decoder.embedding, decoded.outputs)
        stats = NestedMap(encoder=encoded.stats, decoder=decoded.stats)
        return StackOutput(logits, encoded.moe_loss + decoded.moe_loss, stats)

    def encode(self, theta: NestedMap, source_ids: tf.Tensor, lengths: tf.Tensor) -> Source:
        """Reads a batch of sentences, once, for decoding.

        Args:
            theta: as `weights`.
            source_ids: int32 [B, L].
            lengths: int32 [B], real tokens of each row.
        """
        segments = tf.sequence_mask(lengths, tf.shape(source_ids)[1], tf.int32)
        encoded = self.encoder.fprop(theta.encoder, source_ids, segments, EVALUATION).outputs
        memories = {
            name: layer.attention.project(theta.decoder[name].cross_attention, encoded)
            for name, layer in self.decoder.layers.items()
        }
        return Source(memories, segment_bias(tf.ones_like(segments[:, :1]), segments))

    def empty_caches(self, batch: int | tf.Tensor, positions: int | tf.Tensor, dtype: tf.DType):
        """Caches [B, N, P, D] of zeros for each decoder layer, to be filled by `step`."""
        shape = [batch, self.params.num_heads, positions, self.params.head_dim]
        return {
            name: KeysValues(tf.zeros(shape, dtype), tf.zeros(shape, dtype))
            for name in self.decoder.layers
        }

    def step(
        self,
        theta: NestedMap,
        token_ids: tf.Tensor,
        step: tf.Tensor,
        caches: dict[str, KeysValues],
        visible: tf.Tensor,
        source: Source,
    ) -> tuple[tf.Tensor, dict[str, KeysValues]]:
        """Scores of the next token for K hypotheses of each sentence (GShard's flat beam search).

        Cache position t·K + k holds what hypothesis k wrote in step t; nothing ever moves there.

        Args:
            theta: as `weights`.
            token_ids: int32 [B, K], the newest token of each hypothesis.
            step: int32 [], its position t.
            caches: layer -> keys and values [B, N, P, D], P = steps · K.
            visible: bool [B, K, P], the flat positions of each hypothesis's own tokens, the newest
                included.
            source: from `encode`.

        Returns:
            logits float32 [B, K, V] and the updated caches.
        """
        decoder, beam = self.decoder, tf.shape(token_ids)[1]
        theta = self._decoder_theta(theta)
        x = decoder.embedding.lookup(theta.embedding, token_ids)
        positions = tf.range(tf.shape(visible)[2]) // beam
        distance = decoder.relative_bias.fprop(
            theta.relative_bias, step[None], positions
        )  # [N, 1, P]
        bias = tf.where(visible[:, None], distance[None], -1e9)

        def update(cache, new):
            return _write(cache, new, step * beam)

        new_caches = {}
        for name, layer in decoder.layers.items():
            x, new_caches[name] = layer.step(
                theta[name],
                x,
                caches[name],
                bias,
                source.memories[name],
                source.bias,
                update,
                token_ids,
            )
        x = decoder.norm.fprop(theta.norm, x)
        return decoder.embedding.logits(theta.embedding, x), new_caches


def _write(cache: tf.Tensor, new: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """cache [B, N, P, D] with new [B, N, K, D] at positions start … start + K - 1."""
    end = start + tf.shape(new)[2]
    shape = tf.shape(cache)
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=cache,
        begin=tf.stack([0, 0, start, 0]),
        end=tf.stack([shape[0], shape[1], end, shape[3]]),
        strides=tf.ones([4], tf.int32),
        value=new,
    )
