"""The MoE Transformer encoder-decoder.

B batch, T target length, L source length, K living hypotheses, C caches with P positions, each of Q
hypotheses, N heads, M model, V vocabulary, Y equal blocks of layers.
"""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.layers.attention import (
    FORBIDDEN,
    KeysValues,
    causal_bias,
    segment_bias,
)
from lingvo_moe.layers.embedding import Embedding
from lingvo_moe.layers.position import RelativeBias
from lingvo_moe.layers.remat import rematerialized, stop_gradients
from lingvo_moe.layers.scan import scan
from lingvo_moe.layers.transformer_layer import StackOutput, TransformerLayer, TransformerParams
from lingvo_moe.nn.layer import EVALUATION, Context, Layer, dropout, layer_names, stacked
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.nn.special_tokens import PAD
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.nn.zeros import runtime_zeros
from lingvo_moe.sbp import copies
from lingvo_moe.sbp.annotations import active


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(Layer):
    """The encoder or the decoder: embedding, relative bias, layers, final norm."""

    params: TransformerParams
    vocab_size: PositiveInt
    is_decoder: bool

    @property
    def embedding(self) -> Embedding:
        """The token table of this side."""
        return Embedding(
            vocab_size=self.vocab_size,
            model_dim=self.params.model_dim,
            scaled=self.params.scale_embedding,
        )

    @property
    def relative_bias(self) -> RelativeBias | None:
        """Shared by the layers of the stack; None where positions are absolute."""
        return self.params.position.relative_bias(self.params.num_heads, not self.is_decoder)

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
            for i, name in enumerate(layer_names(count))
        }

    @property
    def block(self) -> dict[str, TransformerLayer]:
        """The layers that repeat through the stack, up to and with the first MoE layer."""
        return dict(list(self.layers.items())[: self.params.block_size])

    def weights(self):
        """Theta: embedding, relative_bias, norm, and layer_00 … or, for a scan, block [Y, …]."""
        weights = NestedMap(
            embedding=self.embedding.weights(),
            norm=self.params.norm.weights(self.params.model_dim),
        )
        if self.relative_bias:
            weights.relative_bias = self.relative_bias.weights()
        if not self.params.scan:
            layers = NestedMap(self.layers).map(lambda layer: layer.weights())
            return NestedMap(weights | layers)
        block = NestedMap(self.block).map(lambda layer: layer.weights())
        weights.block = stacked(block, len(self.layers) // len(self.block), "Y")
        return weights

    def layer_thetas(self, theta: NestedMap) -> dict[str, NestedMap]:
        """Name -> the weights of each layer."""
        if not self.params.scan:
            return {name: theta[name] for name in self.layers}
        places = [theta.block[name] for name in self.block]
        return {
            name: places[i % len(places)].map(lambda w, i=i: w[i // len(places)])
            for i, name in enumerate(self.layers)
        }

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights of an encoder for `fprop` without gradients."""
        scan = self.params.scan
        layers, held = (self.block, theta.block) if scan else (self.layers, theta)
        laid_out = NestedMap({name: layer.lay_out(held[name]) for name, layer in layers.items()})
        return NestedMap(theta, block=laid_out) if scan else NestedMap(theta | laid_out)

    def fprop(
        self,
        theta: NestedMap,
        tokens: Tokens,
        context: Context,
        memory: tf.Tensor | None = None,
        memory_segments: tf.Tensor | None = None,
    ) -> StackOutput:
        """The stack over whole, possibly packed, sequences.

        Args:
            theta: as `weights`.
            tokens: [B, T].
            context: mode and randomness.
            memory: [B, L, M], the encoder's outputs (decoder only).
            memory_segments: int32 [B, L] (decoder only).
        """
        x = self.embedding.lookup(theta.embedding, tokens.ids)
        x = self.params.position.encode(x, tokens.positions)
        x = dropout(x, self.params.dropout_rate, context.fold("embedding"))
        segments, length = tokens.segments, tf.shape(tokens.ids)[1]
        bias = segment_bias(segments, segments)
        if self.relative_bias:
            position = tf.range(length)
            relative = self.relative_bias.fprop(theta.relative_bias, position, position)
            bias += copies.per_row(relative, 3, bias)
        if self.is_decoder:
            bias += causal_bias(length)
        memory_bias = segment_bias(segments, memory_segments) if self.is_decoder else None
        run = self._scan if self.params.scan and context.training else self._unrolled
        surroundings = (bias, tokens, memory, memory_bias)
        x, moe_loss, stats, routings = run(theta, x, surroundings, context)
        x = self.params.norm.fprop(theta.norm, x)
        x = dropout(x, self.params.dropout_rate, context.fold("out"))
        return StackOutput(x, moe_loss, stats, routings)

    def _unrolled(self, theta, x, surroundings, context):
        """The StackOutput of all layers; surroundings are the other arguments of each layer."""
        bias, tokens, *memory = surroundings
        moe_loss, stats, routings = tf.constant(0.0), NestedMap(), NestedMap()
        thetas = self.layer_thetas(theta)
        for name, layer in self.layers.items():
            with tf.name_scope(f"{self._side}/{name}"):
                x, layer_loss, layer_stats, routing = self._fprop_of(layer, context)(
                    thetas[name], x, bias, tokens, context.fold(name), *memory
                )
            moe_loss += layer_loss
            if layer.is_moe:
                stats[name], routings[name] = layer_stats, routing
        return StackOutput(x, moe_loss, stats, routings)

    def _scan(self, theta, x, surroundings, context):
        """The same by a loop over blocks."""
        names, size = list(self.layers), len(self.block)
        seeds = tf.stack([context.fold(name).seed for name in names])

        def body(theta, x, surroundings, seeds):
            bias, tokens, *memory = surroundings
            loss, aside = tf.constant(0.0), []
            for place, (name, layer) in enumerate(self.block.items()):
                own = theta[name].map(
                    lambda w, spec: copies.annotate_weight(w, spec.dims), layer.weights()
                )
                with tf.name_scope(f"{self._side}/block/{name}"):
                    x, layer_loss, *results = layer.fprop(
                        own, x, bias, tokens, Context(seeds[place]), *memory
                    )
                loss += layer_loss
                if layer.is_moe:
                    aside.append(results)
            return x, loss, aside

        def cut(block):
            specs = self.weights().block
            return block.map(
                lambda w, spec: copies.annotate_weight(w, spec.dims, at_rest=True), specs
            )

        each = tf.reshape(seeds, [-1, size, 2])
        x, moe_loss, aside = scan(
            body, theta.block, x, surroundings, each, cut if active() else None
        )
        stats, routings = NestedMap(), NestedMap()
        moe_places = [place for place, layer in enumerate(self.block.values()) if layer.is_moe]
        for place, results in zip(moe_places, aside, strict=True):
            for y, name in enumerate(names[place::size]):
                one = tf.nest.map_structure(lambda tensor, y=y: tensor[y], results)
                stats[name], routings[name] = one
        return StackOutput(x, moe_loss, stats, routings)

    @property
    def _side(self):
        return "decoder" if self.is_decoder else "encoder"

    def _fprop_of(self, layer, context):
        if not (self.params.remat and context.training):
            return layer.fprop

        def fprop(*args):
            outputs, loss, *aside = layer.fprop(*args)
            return StackOutput(outputs, loss, *map(stop_gradients, aside))

        return rematerialized(fprop)


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
    source_vocab_size: PositiveInt
    target_vocab_size: PositiveInt

    def __post_init__(self):
        super().__post_init__()
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
        params = self.params.of_decoder()
        return Stack(params=params, vocab_size=self.target_vocab_size, is_decoder=True)

    def weights(self):
        """Theta: encoder, decoder; with a shared embedding the decoder has none."""
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
        source: Tokens,
        target: Tokens,
        context: Context,
    ) -> StackOutput:
        """Teacher-forced logits float32 [B, T, V] as outputs; the rest as `hidden`."""
        hidden = self.hidden(theta, source, target, context)
        embedding = self._decoder_theta(theta).embedding
        return hidden._replace(outputs=self.decoder.embedding.logits(embedding, hidden.outputs))

    def loss(
        self, theta: NestedMap, hidden: tf.Tensor, labels: tf.Tensor, smoothing: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The smoothed cross-entropy and the likelihood of labels, see layers.loss.

        Args:
            theta: as `weights`.
            hidden: [B, T, M], the outputs of `hidden`.
            labels: int32 [B, T].
            smoothing: ε.
        """
        embedding = self._decoder_theta(theta).embedding
        return self.decoder.embedding.loss(embedding, hidden, labels, smoothing)

    def hidden(
        self,
        theta: NestedMap,
        source: Tokens,
        target: Tokens,
        context: Context,
    ) -> StackOutput:
        """The last hidden states of the decoder, teacher-forced.

        Args:
            theta: as `weights`.
            source: [B, L].
            target: [B, T], the decoder's inputs: ids shifted right. A sentence pair has the same
                segment on both sides.
            context: mode and randomness.

        Returns:
            outputs [B, T, M]; moe_loss; stats and routings of the `encoder` and `decoder`.
        """
        encoded = self.encoder.fprop(theta.encoder, source, context.fold("encoder"))
        theta_decoder = self._decoder_theta(theta)
        decoded = self.decoder.fprop(
            theta_decoder, target, context.fold("decoder"), encoded.outputs, source.segments
        )
        stats = NestedMap(encoder=encoded.stats, decoder=decoded.stats)
        routings = NestedMap(encoder=encoded.routings, decoder=decoded.routings)
        loss = encoded.moe_loss + decoded.moe_loss
        return StackOutput(decoded.outputs, loss, stats, routings)

    def lay_out(self, theta: NestedMap, num_pieces: int | None = None) -> NestedMap:
        """The weights rearranged for decoding, to be computed once for many batches.

        Args:
            theta: as `weights`. Weights that need no other layout are not copied.
            num_pieces: number of pieces of the target vocabulary if the embedding table has more
                rows; None for all rows.

        Returns:
            `encoder`; `decoder` with `layers`, `relative_bias` by distance, `norm`, and `output`.
        """
        decoder, own = self.decoder, self._decoder_theta(theta)
        thetas = decoder.layer_thetas(own)
        layers = {name: layer.lay_out(thetas[name]) for name, layer in decoder.layers.items()}
        laid_out = NestedMap(
            embedding=own.embedding,
            output=decoder.embedding.lay_out(own.embedding, num_pieces),
            norm=own.norm,
            layers=NestedMap(layers),
        )
        if decoder.relative_bias:
            laid_out.relative_bias = decoder.relative_bias.by_distance(own.relative_bias)
        return NestedMap(encoder=self.encoder.lay_out(theta.encoder), decoder=laid_out)

    def encode(
        self,
        laid_out: NestedMap,
        source_ids: tf.Tensor,
        lengths: tf.Tensor,
        tasks: tf.Tensor | None = None,
    ) -> NestedMap:
        """Encodes a batch of sentences for decoding.

        Args:
            laid_out: of `lay_out`.
            source_ids: int32 [B, L].
            lengths: int32 [B], real tokens of each row.
            tasks: int32 [B], for routers by task.

        Returns:
            `memories`, the keys and values of each decoder layer; `bias` float32 [B, 1, 1, L],
            FORBIDDEN towards padding; `tasks`, if they were given.
        """
        segments = tf.sequence_mask(lengths, tf.shape(source_ids)[1], tf.int32)
        tokens = Tokens(source_ids, segments, _spread(tasks, source_ids))
        encoded = self.encoder.fprop(laid_out.encoder, tokens, EVALUATION).outputs
        memories = {
            name: layer.attention.project(laid_out.decoder.layers[name].cross_attention, encoded)
            for name, layer in self.decoder.layers.items()
        }
        # Its length of one is static; a slice of the segments would have a dynamic length.
        anywhere = tf.ones([tf.shape(segments)[0], 1], tf.int32)
        source = NestedMap(memories=memories, bias=segment_bias(anywhere, segments))
        if tasks is not None:
            source.tasks = tasks
        return source

    def empty_caches(self, lengths: tf.Tensor, positions: int | tf.Tensor, dtype: tf.DType):
        """Caches [C, n, P, D] of zeros for each decoder layer, to be filled by `step`.

        Args:
            lengths: int32 [C], of the sentence of each cache.
            positions: P.
            dtype: of the caches.
        """
        attention = self.params.of_decoder().attention_layer
        shape = [tf.shape(lengths)[0], attention.key_heads, positions, attention.head_dim]
        zeros = runtime_zeros(shape, dtype, tf.reduce_sum(lengths))
        return {name: KeysValues(zeros, zeros) for name in self.decoder.layers}

    def step(
        self,
        laid_out: NestedMap,
        token_ids: tf.Tensor,
        step: tf.Tensor,
        caches: dict[str, KeysValues],
        visible: tf.Tensor,
        source: NestedMap,
    ) -> tuple[tf.Tensor, dict[str, KeysValues], tf.Tensor]:
        """Scores of the next token for K hypotheses of each sentence.

        Q hypotheses of a sentence share a cache: all K in GShard's flat beam search, or one.
        Position t·Q + q of a cache has the keys and values of its hypothesis q in step t.

        Args:
            laid_out: of `lay_out`.
            token_ids: int32 [B, K], the newest token of each hypothesis; PAD if the hypothesis is
                dead, so that it takes no expert's capacity.
            step: int32 [], its position t.
            caches: layer -> keys and values [C, n, P, D], P = steps · Q.
            visible: bool [C, Q, P], the positions of the tokens of each hypothesis, with the
                newest.
            source: from `encode`.

        Returns:
            logits float32 [B, K, V], V as in `Embedding.lay_out`; the updated caches; and the
            attention [B, N, K, L] to the source from which the next token is predicted. It is that
            of the last layer but one, or of the only layer, because that layer's attention is
            closest to a word alignment (Garg et al. 2019, arXiv 1909.02074).
        """
        decoder, beam, own = self.decoder, size_of(token_ids, 1), laid_out.decoder
        x = self.params.position.encode(decoder.embedding.lookup(own.embedding, token_ids), step)
        x = tf.reshape(x, [-1, self.params.model_dim])
        bias = self._step_bias(own, step, visible)
        living = tf.cast(token_ids != PAD, tf.int32)
        tokens = Tokens(token_ids, living, _spread(source.get("tasks"), token_ids))
        new_caches, attentions = {}, []
        for name, layer in decoder.layers.items():
            x, new_caches[name], attention = layer.step(
                own.layers[name],
                x,
                caches[name],
                bias,
                source.memories[name],
                source.bias,
                step * size_of(visible, 1),
                tokens,
            )
            attentions.append(attention)
        x = self.params.norm.fprop(own.norm, x)
        logits = decoder.embedding.step_logits(own.output, x)
        logits = tf.reshape(logits, [-1, beam, size_of(logits, -1)])
        return logits, new_caches, attentions[-2:][0]

    def _step_bias(self, own, step, visible):
        """float32, [C, N or 1, Q, P]: the bias of the newest tokens' self-attention."""
        if "relative_bias" not in own:
            return tf.where(visible, 0.0, FORBIDDEN)[:, None]
        distance = step - tf.range(tf.shape(visible)[2]) // size_of(visible, 1)
        by_position = tf.gather(
            own.relative_bias, tf.clip_by_value(distance, 0, own.relative_bias.shape[1] - 1), axis=1
        )  # [N, P]
        return tf.where(visible[:, None], by_position[:, None], FORBIDDEN)


def _spread(tasks: tf.Tensor | None, like: tf.Tensor) -> tf.Tensor | None:
    """The tasks int32 [B] of rows, repeated for their tokens [B, T]."""
    return None if tasks is None else tf.broadcast_to(tasks[:, None], tf.shape(like))
