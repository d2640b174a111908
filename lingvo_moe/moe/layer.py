"""Mixture-of-Experts layer.  G groups, S tokens/group, E experts, K choices, M model, H hidden."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveInt
from lingvo_moe.moe.activation import Activation, ReLU
from lingvo_moe.moe.dispatch import AnyShape, Dispatcher, Gather
from lingvo_moe.moe.experts import ExpertParams, HeldExperts
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.gatings.base import Extras, Gating, Routing
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.moe.router import ByToken, Router
from lingvo_moe.moe.shared import Alone, Shared
from lingvo_moe.nn.layer import Context, Layer
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.nn.tokens import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEParams(Params):
    """The params of a model's MoE layers.

    Attributes:
        num_experts: E.
        decoder_num_experts: E of the decoder's layers; None for the encoder's.
        every_n: every n-th layer of a stack is an MoE layer.
        expert: of one expert.
        router: scores tokens against experts.
        gating: the policy that chooses experts by the scores.
        training: the policy that moves tokens to experts in training, with groups and capacity.
        evaluation: the same in evaluation and decoding. Programs that XLA compiles use `Einsum`
            with its capacity instead, but for `Dropless`.
        shared: the policy for a network beside the experts, which every token uses.
    """

    num_experts: PositiveInt
    decoder_num_experts: PositiveInt | None = None
    every_n: PositiveInt = 2
    expert: ExpertParams = ExpertParams()
    router: Router = ByToken()
    gating: Gating = Top2()
    training: Dispatcher = Gather()
    evaluation: AnyShape = Ragged()
    shared: Shared = Alone()

    def of_decoder(self) -> "MoEParams":
        """The params of the decoder's layers."""
        return dataclasses.replace(self, num_experts=self.decoder_num_experts or self.num_experts)


class MoEOutput(NamedTuple):
    """The result of an MoE layer.

    Attributes:
        outputs: [B, T, M].
        loss: float32 [], the weighted sum of the layer's losses, to be added to the objective.
        stats: NestedMap of float32 statistics: `capacity` [], C; Routing's `load` and `choices`
            [E] and `drop_rate` [], the router's `importance` [E] and `entropy` [], the unweighted
            losses `aux_loss` and `z_loss` [], those of MoEParams.shared, and in training those of
            the dispatcher, such as `rung` (see megablocks.laddered).
        routing: the experts of each token, before expert output masking.
    """

    outputs: tf.Tensor
    loss: tf.Tensor
    stats: NestedMap
    routing: Routing


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoE(Layer):
    """A router, E feed-forward experts, and the dispatch between them (GShard section 2).

    Attributes:
        model_dim: M.
        hidden_dim: H of one expert.
        params: the rest.
        activation: of the experts; params.expert.activation replaces it.
        use_bias: of the experts.
    """

    model_dim: PositiveInt
    hidden_dim: PositiveInt
    params: MoEParams
    activation: Activation = ReLU()
    use_bias: bool = False

    @property
    def expert(self) -> FeedForward:
        """One expert."""
        return FeedForward(
            model_dim=self.model_dim,
            hidden_dim=self.hidden_dim,
            activation=self.params.expert.activation or self.activation,
            dropout_rate=self.params.expert.dropout_rate,
            use_bias=self.use_bias,
        )

    @property
    def experts(self) -> FeedForward:
        """The expert networks, stacked along E."""
        return dataclasses.replace(self.expert, num_experts=self.params.num_experts)

    @property
    def shared(self) -> FeedForward | None:
        """The network that all tokens use, or None."""
        return self.params.shared.network(self.expert)

    def weights(self):
        """Theta: the router's gate, experts in the dispatcher's layout, and optional parts.

        `gating`, the policy's state; the weights of MoEParams.shared.

        Raises:
            ValueError: the policy cannot choose among so many experts.
        """
        p = self.params
        p.gating.check(p.num_experts)
        gate = p.router.weights(self.model_dim, p.num_experts).map(
            lambda spec: dataclasses.replace(spec, cast=False)  # see Router.weights
        )
        experts = p.training.holding.weights(self.experts.weights())
        weights = NestedMap(gate, **experts, **p.shared.weights(self.expert))
        if state := p.gating.state(p.num_experts):
            weights.gating = state
        return weights

    def fprop(
        self, theta: NestedMap, inputs: tf.Tensor, tokens: Tokens, context: Context
    ) -> MoEOutput:
        """Routes every real token to its experts.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            tokens: [B, T].
            context: mode and randomness.
        """
        p = self.params
        policy = p.training if context.training else p.evaluation
        grouped, tokens = policy.in_groups(inputs, tokens)
        scores = p.router.fprop(theta, grouped, tokens, context.fold("router"))
        # A pruned layer has fewer experts than p.num_experts.
        capacity = policy.capacity(grouped.shape[1], scores.logits.shape[-1])
        state = theta.get("gating", NestedMap())
        extras = Extras(tokens.ids, tokens.segments, size_of(inputs, 1), state)
        routing = p.gating.choose(scores.logits, tokens.mask, capacity, context, extras)
        masked = p.expert.mask(routing, context.fold("output_mask"))
        if not context.training:
            masked = p.training.holding.to_expert_index(masked, theta)
        experts = HeldExperts(self.experts, theta, context.fold("experts"))
        outputs, moved = policy.dispatch(grouped, masked, capacity, experts)
        joined = p.shared.fprop(theta, self.expert, grouped, outputs, tokens, context)
        stats = NestedMap(routing.stats | scores.stats | joined.stats, aux_loss=routing.aux_loss)
        stats.capacity = tf.cast(capacity or size_of(grouped, 1), tf.float32)
        loss = routing.loss + scores.loss + joined.loss
        outputs = tf.reshape(joined.outputs, tf.shape(inputs))
        return MoEOutput(outputs, loss, NestedMap(stats | moved), routing)
