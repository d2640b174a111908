"""One layer of the MoE Transformer, and the params of all layers.

B batch, T target length, L source length, K living hypotheses, C caches with P positions, each of Q
hypotheses, N heads, M model.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import FromData, Params, PositiveInt, Rate
from lingvo_moe.layers.attention import Attention, AttentionParams, KeysValues, MultiHead
from lingvo_moe.layers.norm import Norm, RMSNorm
from lingvo_moe.layers.position import Position, Relative
from lingvo_moe.moe.activation import Activation, ReLU
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import EVALUATION, Context, Layer, dropout
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.nn.tokens import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerParams(Params):
    """The shape of an encoder-decoder (GShard section 4).

    Attributes:
        num_encoder_layers, num_decoder_layers: the paper's 36L is 18 + 18.
        model_dim: M.
        hidden_dim: H of the dense feed-forward layers, and of experts without an own one.
        num_heads: N.
        head_dim: D.
        decoder_hidden_dim, decoder_num_heads, decoder_head_dim: those of the decoder; None for the
            encoder's.
        moe: the Mixture-of-Experts layers; None for a dense model.
        dropout_rate: on embeddings, residual branches, attention probabilities, and what each side
            gives after its last norm.
        shared_embedding: one table for both sides, which needs a joint vocabulary.
        activation: of the feed-forward layers, and of experts without an own one.
        norm: in front of each branch, and after the last layer.
        attention: the kind of attention, in encoder and decoder.
        position: how the order of tokens is known.
        use_bias: whether projections of attention, feed-forward layers and experts add biases.
        scale_embedding: whether embeddings are multiplied by √M when they are looked up (Vaswani et
            al. 2017, section 3.4); otherwise their logits are, by 1/√M.
        scale_attention: whether logits of attention are multiplied by 1/√D (same paper, section
            3.2.1); otherwise the initial queries are as much smaller.
        remat: whether training keeps only the inputs and outputs of each layer and recomputes the
            rest in the backward pass: a third more FLOPs for a fraction of the memory.
        scan: whether equal blocks of layers (moe.every_n layers each) are stacked in one set of
            weights, and training runs them in a loop, rematerialised. The compiled program has one
            block, at any depth.

    Raises:
        ValueError: a size out of range, or scan with a number of layers that is not a multiple of
            a block's.
    """

    num_encoder_layers: PositiveInt
    num_decoder_layers: PositiveInt
    model_dim: PositiveInt
    hidden_dim: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    decoder_hidden_dim: PositiveInt | None = None
    decoder_num_heads: PositiveInt | None = None
    decoder_head_dim: PositiveInt | None = None
    moe: MoEParams | None = None
    dropout_rate: Rate | FromData = 0.1
    shared_embedding: bool = False
    activation: Activation = ReLU()
    norm: Norm = RMSNorm()
    attention: AttentionParams = MultiHead()
    position: Position = Relative()
    use_bias: bool = False
    scale_embedding: bool = False
    scale_attention: bool = False
    remat: bool = False
    scan: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_encoder_layers", "num_decoder_layers"):
            if self.scan and getattr(self, name) % self.block_size:
                raise ValueError(
                    f"scan needs {name} to be a multiple of moe.every_n ({self.block_size}), got "
                    f"{getattr(self, name)}; change one of them or set scan=False."
                )

    def of_decoder(self) -> "TransformerParams":
        """The params of the decoder's layers, but for their moe."""
        return dataclasses.replace(
            self,
            hidden_dim=self.decoder_hidden_dim or self.hidden_dim,
            num_heads=self.decoder_num_heads or self.num_heads,
            head_dim=self.decoder_head_dim or self.head_dim,
        )

    @property
    def attention_layer(self) -> Attention:
        """The attention of each layer."""
        return self.attention.layer(
            model_dim=self.model_dim,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            position=self.position,
            dropout_rate=self.dropout_rate,
            use_bias=self.use_bias,
            scaled=self.scale_attention,
        )

    @property
    def block_size(self) -> int:
        """Layers from one MoE layer to the next; 1 in a dense model."""
        return self.moe.every_n if self.moe else 1

    @property
    def expert_hidden_dim(self) -> int:
        """H of the experts, or of the dense feed-forward layers."""
        own = self.moe.expert.hidden_dim if self.moe else None
        return own or self.hidden_dim


class StackOutput(NamedTuple):
    """The result of a stack of layers.

    Attributes:
        outputs: [B, T, M].
        moe_loss: float32 [], the weighted losses of its MoE layers, summed.
        stats: MoE layer -> statistics as in MoEOutput.
        routings: MoE layer -> the Routing of its tokens.
    """

    outputs: tf.Tensor
    moe_loss: tf.Tensor
    stats: NestedMap
    routings: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayer(Layer):
    """Pre-norm: self-attention, attention to the source (decoder only), feed-forward or MoE."""

    params: TransformerParams
    is_decoder: bool
    is_moe: bool

    @property
    def attention(self) -> Attention:
        """The layer of both self-attention and attention to the source, with different theta."""
        return self.params.attention_layer

    @property
    def feed_forward(self) -> FeedForward | MoE:
        """The last branch."""
        p = self.params
        if self.is_moe and p.moe:
            return MoE(
                model_dim=p.model_dim,
                hidden_dim=p.expert_hidden_dim,
                params=p.moe.of_decoder() if self.is_decoder else p.moe,
                activation=p.activation,
                use_bias=p.use_bias,
            )
        return FeedForward(
            model_dim=p.model_dim,
            hidden_dim=p.hidden_dim,
            activation=p.activation,
            use_bias=p.use_bias,
        )

    @property
    def dense(self) -> FeedForward | None:
        """The dense network of the last branch, if any: the branch itself or its shared network."""
        layer = self.feed_forward
        return layer.shared if isinstance(layer, MoE) else layer

    def weights(self):
        """Theta: self_attention, cross_attention (decoder), feed_forward, and a norm for each."""
        branches = NestedMap(self_attention=self.attention, feed_forward=self.feed_forward)
        if self.is_decoder:
            branches.cross_attention = self.attention
        weights = branches.map(lambda layer: layer.weights())
        norm = self.params.norm.weights(self.params.model_dim)
        return NestedMap(weights, norms=branches.map(lambda _: norm))

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        bias: tf.Tensor,
        tokens: Tokens,
        context: Context,
        memory: tf.Tensor | None = None,
        memory_bias: tf.Tensor | None = None,
    ) -> StackOutput:
        """One layer over whole sequences.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            bias: float32, broadcasts to [B, N, T, T].
            tokens: [B, T].
            context: mode and randomness.
            memory: [B, L, M], the encoder's outputs (decoder only).
            memory_bias: float32, broadcasts to [B, N, T, L] (decoder only).
        """
        x = self._attention_branch("self_attention", theta, inputs, None, bias, context, tokens)
        if self.is_decoder:
            x = self._attention_branch(
                "cross_attention", theta, x, memory, memory_bias, context, tokens
            )
        return self._feed_forward_branch(theta, x, tokens, context)

    def lay_out(self, theta: NestedMap) -> NestedMap:
        """The weights of a decoder's layer for `step`, of an encoder's for `fprop`."""
        if not self.is_decoder:
            attention = self.attention.lay_out_for_sequences(theta.self_attention)
            return NestedMap(theta, self_attention=attention)
        return NestedMap(
            theta,
            self_attention=self.attention.lay_out(theta.self_attention),
            cross_attention=self.attention.lay_out_for_memory(theta.cross_attention),
        )

    def step(
        self,
        laid_out: NestedMap,
        inputs: tf.Tensor,
        cache: KeysValues,
        bias: tf.Tensor,
        memory: KeysValues,
        memory_bias: tf.Tensor,
        start: tf.Tensor,
        tokens: Tokens,
    ) -> tuple[tf.Tensor, KeysValues, tf.Tensor]:
        """One layer for one step of decoding, K hypotheses of each sentence at a time.

        Args:
            laid_out: of `lay_out`.
            inputs: [B·K, M].
            cache: keys and values of all earlier steps, [C, n, P, D].
            bias: float32 [C, N or 1, Q, P].
            memory: the source's keys and values, of `Attention.project`.
            memory_bias: float32 [B, 1, 1, L].
            start: int32 [], the first of the Q positions for the new keys and values.
            tokens: [B, K], their ids, segments and tasks.

        Returns:
            outputs [B·K, M], the updated cache, and the attention to the source [B, N, K, L].
        """
        norm, norms, beam = self.params.norm, laid_out.norms, size_of(tokens.ids, 1)
        x = norm.fprop(norms.self_attention, inputs)
        sharing = size_of(bias, 2)
        y, cache = self.attention.step(laid_out.self_attention, x, cache, bias, start, sharing)
        y += inputs
        x = norm.fprop(norms.cross_attention, y)
        x, attention = self.attention.attend(laid_out.cross_attention, x, memory, memory_bias, beam)
        y += x
        x = norm.fprop(norms.feed_forward, y)
        layer = self.feed_forward
        if isinstance(layer, MoE):
            x = tf.reshape(x, [-1, beam, self.params.model_dim])
            x = layer.fprop(laid_out.feed_forward, x, tokens, EVALUATION).outputs
            x = tf.reshape(x, tf.shape(y))
        else:
            x = layer.fprop(laid_out.feed_forward, x)
        return y + x, cache, attention

    def _attention_branch(self, name, theta, inputs, memory, bias, context, tokens):
        context = context.fold(name)
        x = self.params.norm.fprop(theta.norms[name], inputs)
        memory = x if memory is None else memory
        x = self.attention.fprop(theta[name], x, memory, bias, context.fold("probs"), tokens)
        return inputs + dropout(x, self.params.dropout_rate, context)

    def _feed_forward_branch(self, theta, inputs, tokens, context):
        context = context.fold("feed_forward")
        x = self.params.norm.fprop(theta.norms.feed_forward, inputs)
        layer, aside = self.feed_forward, [tf.constant(0.0), NestedMap(), None]
        if isinstance(layer, MoE):
            x, *aside = layer.fprop(theta.feed_forward, x, tokens, context.fold("gating"))
        else:
            flat = tf.reshape(x, [-1, self.params.model_dim])
            x = tf.reshape(layer.fprop(theta.feed_forward, flat), tf.shape(x))
        x = dropout(x, self.params.dropout_rate, context)
        return StackOutput(inputs + x, *aside)
