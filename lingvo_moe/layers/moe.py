"""Mixture-of-Experts layer.  G groups, S tokens/group, E experts, K choices, M model, H hidden."""

import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import (
    NonNegativeFloat,
    NonNegativeInt,
    Params,
    PositiveFloat,
    PositiveInt,
    Rate,
    Share,
)
from lingvo_moe.core.layer import Context, Layer, Uniform, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Extras, Gating, Routing, expert_capacity
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.layers.activation import Activation, ReLU
from lingvo_moe.layers.dispatch import Dispatcher, Gather, Ragged
from lingvo_moe.layers.experts import HeldExperts
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.layers.holding import EachOnce
from lingvo_moe.layers.router import ByToken, Router, token_mean
from lingvo_moe.layers.tokens import Tokens
from lingvo_moe.sharding import copies
from lingvo_moe.sharding.annotations import annotate


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEParams(Params):
    """The params of a model's MoE layers.

    E experts, G groups of tokens, S tokens in a group, C capacity: the tokens of a group that an
    expert takes.

    Attributes:
        num_experts: E.
        decoder_num_experts: E of the decoder's layers; None for the encoder's.
        hidden_dim: H, the hidden units of one expert; None for the model's hidden_dim.
        activation: of the experts; None for the model's activation.
        every_n: every n-th layer of a stack is an MoE layer.
        router: scores tokens against experts.
        gating: the policy that chooses experts by the scores.
        num_groups: G in training; must divide the tokens of a batch.
        capacity_factor: C = ceil(capacity_factor · S / E) in training; None for no capacity.
        eval_capacity_factor: the same in evaluation and decoding, where batches have a fixed shape:
            for the dev loss, and in programs that XLA compiles. Elsewhere, as in decoding on one
            machine, and with None (the default), no token is dropped and a translation does not
            depend on the other sentences of its batch.
        eval_num_groups: G in evaluation and decoding if eval_capacity_factor is None; otherwise G
            is num_groups there too. If the tokens do not divide into so many groups, there are
            fewer.
        dispatcher: moves tokens to experts in training.
        eval_dispatcher: the same in evaluation and decoding. Programs that XLA compiles use
            Einsum() instead.
        aux_loss_weight: weight of the balance loss, which is 1.0 at perfect balance.
        z_loss_weight: weight of the router z-loss, the mean of logsumexp(logits)² over real tokens,
            which keeps logits small (Zoph et al. 2022, arXiv 2202.08906, equation 5, with 0.001).
        expert_dropout_rate: dropout on the experts' hidden layer in training (Fedus et al. 2021,
            section 2.4, with 0.4 in fine-tuning).
        output_mask_rate: p of expert output masking (Costa-jussà et al. 2022, arXiv 2207.04672,
            section 6.2): in training each output of an expert for a token is set to zero with
            probability p, without rescaling; in evaluation all outputs are multiplied by 1-p.
        shared_expert: conditional MoE routing (same paper and section): a dense network of an
            expert's shape beside the experts, and for each token a learned gate g = sigmoid(x·w):
            (1-g)·shared(x) + g·moe(x).
        shared_gate_dropout_rate: probability that in training a token's g is 0, so that it uses
            only the shared network.
        shared_gate_loss_weight: weight of the budget loss, the mean of |g - budget| over real
            tokens.
        shared_gate_budget: the target value of g in the budget loss.
        always_on_experts: n; a dense network with the hidden units of n experts is computed for
            every token, and its output is added to that of the chosen experts (Dai et al. 2024,
            DeepSeekMoE, arXiv 2401.06066, section 3.2).
    """

    num_experts: PositiveInt
    decoder_num_experts: PositiveInt | None = None
    hidden_dim: PositiveInt | None = None
    activation: Activation | None = None
    every_n: PositiveInt = 2
    router: Router = ByToken()
    gating: Gating = Top2()
    num_groups: PositiveInt = 1
    capacity_factor: PositiveFloat | None = 2.0
    eval_capacity_factor: PositiveFloat | None = None
    eval_num_groups: PositiveInt = 1
    dispatcher: Dispatcher = Gather()
    eval_dispatcher: Dispatcher = Ragged()
    aux_loss_weight: NonNegativeFloat = 0.01
    z_loss_weight: NonNegativeFloat = 0.0
    expert_dropout_rate: Rate = 0.0
    output_mask_rate: Rate = 0.0
    shared_expert: bool = False
    shared_gate_dropout_rate: Rate = 0.0
    shared_gate_loss_weight: NonNegativeFloat = 0.0
    shared_gate_budget: Share = 0.8
    always_on_experts: NonNegativeInt = 0

    def __post_init__(self):
        super().__post_init__()
        if self.eval_dispatcher.holding != EachOnce():
            raise ValueError(
                f"moe.eval_dispatcher={self.eval_dispatcher} has its own layout of experts, which "
                f"only moe.dispatcher may have; use another, such as moe.eval_dispatcher=Ragged()."
            )
        if self.eval_dispatcher.needs_static_shapes:
            raise ValueError(
                f"moe.eval_dispatcher={self.eval_dispatcher} needs batches of one shape, but those "
                f"of evaluation and decoding differ; use moe.eval_dispatcher=Ragged(). Runtimes "
                f"that compile with XLA use Einsum() instead of it."
            )
        if not self.shared_expert and (
            self.shared_gate_dropout_rate or self.shared_gate_loss_weight
        ):
            raise ValueError(
                "shared_gate_dropout_rate and shared_gate_loss_weight need shared_expert=True."
            )
        if self.shared_expert and self.always_on_experts:
            raise ValueError(
                f"shared_expert=True is a shared network with a gate, and always_on_experts="
                f"{self.always_on_experts} is one without; set one of them."
            )
        for dispatcher in (self.dispatcher, self.eval_dispatcher):
            dispatcher.check(self)

    def of_decoder(self) -> "MoEParams":
        """The params of the decoder's layers."""
        return dataclasses.replace(self, num_experts=self.decoder_num_experts or self.num_experts)


class MoEOutput(NamedTuple):
    """The result of an MoE layer.

    Attributes:
        outputs: [B, T, M].
        loss: float32 [], the weighted sum of the layer's losses, to be added to the objective.
        stats: NestedMap of float32 statistics: `capacity` [], C; Routing's `load` and `choices`
            [E] and `drop_rate` [], the router's `importance` [E] and `entropy` [], and the
            unweighted losses `aux_loss`, `z_loss` and, with a shared expert, `shared_gate_loss`
            [], besides `shared_gate` [], the mean g; in training those of the dispatcher, such as
            `rung` (see layers.fitted).
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
        activation: of the experts; params.activation replaces it.
        use_bias: of the experts.
    """

    model_dim: PositiveInt
    hidden_dim: PositiveInt
    params: MoEParams
    activation: Activation = ReLU()
    use_bias: bool = False

    @property
    def experts(self) -> FeedForward:
        """The expert networks, stacked along E."""
        return FeedForward(
            model_dim=self.model_dim,
            hidden_dim=self.hidden_dim,
            num_experts=self.params.num_experts,
            activation=self.params.activation or self.activation,
            dropout_rate=self.params.expert_dropout_rate,
            use_bias=self.use_bias,
        )

    @property
    def shared(self) -> FeedForward | None:
        """The network that all tokens use, with the size of one or more experts, or None."""
        size = self.params.always_on_experts or int(self.params.shared_expert)
        if not size:
            return None
        return dataclasses.replace(
            self.experts, num_experts=None, hidden_dim=size * self.hidden_dim
        )

    def weights(self):
        """Theta: the router's gate, experts in the dispatcher's layout, and optional parts.

        `gating`, the policy's state; `shared`, the shared network; `shared_gate` [M], its gate.

        Raises:
            ValueError: the policy cannot choose among so many experts.
        """
        p = self.params
        p.gating.check(p.num_experts)
        gate = p.router.weights(self.model_dim, p.num_experts).map(
            lambda spec: dataclasses.replace(spec, cast=False)  # see Router.weights
        )
        weights = NestedMap(gate, **p.dispatcher.holding.weights(self.experts.weights()))
        if state := p.gating.state(p.num_experts):
            weights.gating = state
        if self.shared:
            weights.shared = self.shared.weights()
        if p.shared_expert:
            limit = (3.0 / self.model_dim) ** 0.5
            weights.shared_gate = WeightSpec((self.model_dim,), Uniform(limit), "M", cast=False)
        return weights

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        tokens: Tokens,
        context: Context,
    ) -> MoEOutput:
        """Routes every real token to its experts.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            tokens: [B, T].
            context: mode and randomness.

        Raises:
            ValueError: the tokens do not divide evenly into groups, or a capacity factor is set
                and the shape of inputs is not static.
        """
        p = self.params
        dispatcher = p.dispatcher if context.training else p.eval_dispatcher
        factor = self._capacity_factor(inputs, context.training)
        bounded = context.training or factor is not None
        groups = p.num_groups if bounded else p.eval_num_groups
        if not context.training:
            groups = _fitting(inputs.shape, groups)
        grouped, tokens = self._to_groups(inputs, tokens, groups)
        mask = tokens.mask
        scores = p.router.fprop(theta, grouped, tokens, context.fold("router"))
        num_experts = scores.logits.shape[-1]  # fewer than p.num_experts in a pruned layer
        capacity = expert_capacity(factor, grouped.shape[1], num_experts)
        length, state = inputs.shape[1] or tf.shape(inputs)[1], theta.get("gating", NestedMap())
        extras = Extras(tokens.ids, tokens.segments, length, state)
        routing = p.gating.route(scores.logits, mask, capacity, context, extras)
        routing = chosen = routing._replace(confidence=_confidence(scores.logits, routing.expert))
        stats = NestedMap(routing.stats | scores.stats, aux_loss=routing.aux_loss)
        stats.capacity = tf.cast(capacity or tf.shape(mask)[1], tf.float32)
        loss = p.aux_loss_weight * stats.aux_loss + p.z_loss_weight * stats.z_loss
        routing = self._mask_outputs(routing, context.fold("output_mask"))

        experts = HeldExperts(self.experts, theta, context.fold("experts"))
        if not context.training:
            routing = p.dispatcher.holding.to_expert_index(routing, theta)
        outputs, dispatch_stats = dispatcher.dispatch(grouped, routing, capacity, experts)
        if context.training:
            stats.update(dispatch_stats)
        if p.always_on_experts:
            outputs += self._shared_outputs(theta, grouped, context)
        if p.shared_expert:
            gate = self._shared_gate(theta, grouped)
            stats.shared_gate = token_mean(gate, mask)
            stats.shared_gate_loss = token_mean(tf.abs(gate - p.shared_gate_budget), mask)
            loss += p.shared_gate_loss_weight * stats.shared_gate_loss
            outputs = self._between(theta, grouped, outputs, gate, context)
        return MoEOutput(tf.reshape(outputs, tf.shape(inputs)), loss, stats, chosen)

    def _mask_outputs(self, routing, context):
        """Expert output masking, by the weights of choices, which multiply the experts' outputs."""
        rate, weight = self.params.output_mask_rate, routing.weight
        if not rate:
            return routing
        if not context.training:
            return routing._replace(weight=weight * (1.0 - rate))
        keep = context.uniform(tf.shape(weight)) >= rate
        return routing._replace(weight=tf.where(keep, weight, 0.0))

    def _shared_gate(self, theta, tokens):
        """g, float32 [G, S], before dropout; computed in float32 like the router's scores."""
        weight = tf.cast(theta.shared_gate, tf.float32)
        return tf.sigmoid(copies.einsum("GSM,M->GS", tf.cast(tokens, tf.float32), weight))

    def _shared_outputs(self, theta, tokens, context):
        assert self.shared
        flat = tf.reshape(tokens, [-1, self.model_dim])
        outputs = self.shared.fprop(theta.shared, flat, context.fold("shared"))
        return tf.reshape(outputs, tf.shape(tokens))

    def _between(self, theta, tokens, outputs, gate, context):
        """(1-g)·shared(x) + g·moe(x)."""
        rate = self.params.shared_gate_dropout_rate
        if context.training and rate:
            draw = context.fold("shared_gate").uniform(tf.shape(gate))
            gate = tf.where(draw >= rate, gate, 0.0)
        gate = tf.cast(gate, tokens.dtype)[..., None]
        return (1.0 - gate) * self._shared_outputs(theta, tokens, context) + gate * outputs

    def _capacity_factor(self, inputs, training):
        p = self.params
        factor = p.capacity_factor if training else p.eval_capacity_factor
        if factor is None or inputs.shape.is_fully_defined():
            return factor
        if training or not p.gating.batch_independent:
            raise ValueError(
                f"A capacity factor ({factor}) needs a static shape, got {inputs.shape}; set it to "
                f"None or fix the shape of the batch."
            )
        return None

    def _to_groups(self, inputs, tokens, groups):
        if inputs.shape.is_fully_defined():
            count = inputs.shape[0] * inputs.shape[1]
            if count % groups:
                raise ValueError(
                    f"{inputs.shape[0]} x {inputs.shape[1]} = {count} tokens do not divide into "
                    f"num_groups={groups} groups; change the batch or moe.num_groups."
                )
            size = count // groups
        else:
            size = tf.size(tokens.ids) // groups
        grouped = tf.reshape(inputs, [groups, size, self.model_dim])
        parts = (None if part is None else tf.reshape(part, [groups, size]) for part in tokens)
        return annotate(grouped, "GSM"), Tokens(*parts)


def _fitting(shape: tf.TensorShape, groups: int) -> int:
    """The largest number of groups that divides `groups` and the tokens [B, T] of this shape.

    Decoding has as few tokens as there are sentences. One group, if the shape is not static.
    """
    return math.gcd(groups, shape[0] * shape[1]) if shape.is_fully_defined() else 1


def _confidence(logits: tf.Tensor, expert: tf.Tensor) -> tf.Tensor:
    """float32 [G, S]: the gate of each token's first choice, among logits [G, S, E]."""
    is_first = tf.one_hot(expert[..., 0], logits.shape[-1])
    return tf.reduce_sum(tf.nn.softmax(logits) * is_first, axis=-1)
