"""Mixture-of-Experts layer.  G groups, S tokens/group, E experts, K choices, M model, H hidden."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.layer import Context, Layer, Uniform, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Gating, Routing, expert_capacity
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.layers.activation import Activation, ReLU
from lingvo_moe.layers.dispatch import Dispatcher, Gather, Ragged
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.layers.router import Router, token_mean
from lingvo_moe.sharding.annotations import annotate


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEParams:
    """What a model says of its MoE layers.

    Attributes:
        num_experts: E.
        decoder_num_experts: E of the decoder's layers; None for the encoder's.
        hidden_dim: H of one expert; None for the model's own.
        activation: of the experts; None for the model's own.
        every_n: every n-th layer of a stack is an MoE layer.
        gating: the routing policy.
        num_groups: G in training; must divide the tokens of a batch.
        capacity_factor: C = ceil(capacity_factor · S / E) in training; None drops nothing.
        eval_capacity_factor: the same in evaluation and decoding. With None (the default) nothing
            is dropped and a translation depends on no other sentence of its batch.
        dispatcher: how tokens reach experts in training.
        eval_dispatcher: the same in evaluation and decoding.
        aux_loss_weight: weight of the balance loss, which reads 1.0 at perfect balance.
        z_loss_weight: weight of the router z-loss, the mean of logsumexp(logits)² over real tokens,
            which keeps logits small (Zoph et al. 2022, arXiv 2202.08906, equation 5; they use
            0.001).
        router_jitter: ε; in training the router's inputs are multiplied by U(1-ε, 1+ε) (Fedus et
            al. 2021, arXiv 2101.03961, appendix C; their code has 0.01).
        expert_dropout_rate: dropout on the experts' hidden layer in training (Fedus et al. 2021,
            section 2.4; they use 0.4 in fine-tuning).
        output_mask_rate: p of expert output masking (Costa-jussà et al. 2022, arXiv 2207.04672,
            section 6.2): in training each output of an expert for a token is zeroed with
            probability p and not rescaled, in evaluation every one is multiplied by 1-p.
        shared_expert: conditional MoE routing (same paper and section): a dense network of an
            expert's shape beside the experts and, a token, a learned g = sigmoid(x·w) between the
            two: (1-g)·shared(x) + g·moe(x).
        shared_gate_dropout_rate: probability that in training a token's g is 0: shared alone.
        shared_gate_loss_weight: weight of the budget loss, the mean of |g - budget| over real
            tokens.
        shared_gate_budget: the share of experts that the budget loss asks for.
    """

    num_experts: int
    decoder_num_experts: int | None = None
    hidden_dim: int | None = None
    activation: Activation | None = None
    every_n: int = 2
    gating: Gating = Top2()
    num_groups: int = 1
    capacity_factor: float | None = 2.0
    eval_capacity_factor: float | None = None
    dispatcher: Dispatcher = Gather()
    eval_dispatcher: Dispatcher = Ragged()
    aux_loss_weight: float = 0.01
    z_loss_weight: float = 0.0
    router_jitter: float = 0.0
    expert_dropout_rate: float = 0.0
    output_mask_rate: float = 0.0
    shared_expert: bool = False
    shared_gate_dropout_rate: float = 0.0
    shared_gate_loss_weight: float = 0.0
    shared_gate_budget: float = 0.8

    def __post_init__(self):
        for name in ("num_experts", "decoder_num_experts", "every_n", "num_groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}.")
        for name in ("capacity_factor", "eval_capacity_factor"):
            factor = getattr(self, name)
            if factor is not None and factor <= 0:
                raise ValueError(f"{name} must be > 0, or None for no limit, got {factor}.")
        for name in (
            "router_jitter",
            "expert_dropout_rate",
            "output_mask_rate",
            "shared_gate_dropout_rate",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}.")
        if not 0 <= self.shared_gate_budget <= 1:
            raise ValueError(
                f"shared_gate_budget must be in [0, 1], got {self.shared_gate_budget}."
            )
        if not self.shared_expert and (
            self.shared_gate_dropout_rate or self.shared_gate_loss_weight
        ):
            raise ValueError(
                "shared_gate_dropout_rate and shared_gate_loss_weight need shared_expert=True."
            )

    def of_decoder(self) -> "MoEParams":
        """The params of the decoder's layers."""
        return dataclasses.replace(self, num_experts=self.decoder_num_experts or self.num_experts)


class MoEOutput(NamedTuple):
    """What an MoE layer gives.

    Attributes:
        outputs: [B, T, M].
        loss: float32 [], the weighted sum of the layer's own losses, to be added to the objective.
        stats: NestedMap of float32 statistics: Routing's `load` [E] and `drop_rate` [], the
            router's `importance` [E] and `entropy` [], `unused` [], the number of experts that got
            no token, and the unweighted losses `aux_loss`, `z_loss` and, with a shared expert,
            `shared_gate_loss` [], besides `shared_gate` [], the mean g of real tokens.
    """

    outputs: tf.Tensor
    loss: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoE(Layer):
    """A router, E feed-forward experts, and the way there and back (GShard section 2).

    Attributes:
        model_dim: M.
        hidden_dim: H of one expert.
        params: the rest.
        activation: of the experts, unless params say otherwise.
    """

    model_dim: int
    hidden_dim: int
    params: MoEParams
    activation: Activation = ReLU()

    @property
    def router(self) -> Router:
        """What scores tokens against experts."""
        p = self.params
        return Router(model_dim=self.model_dim, num_experts=p.num_experts, jitter=p.router_jitter)

    @property
    def shared(self) -> FeedForward:
        """The network that all tokens share: one expert's shape."""
        return FeedForward(
            model_dim=self.model_dim,
            hidden_dim=self.hidden_dim,
            activation=self.params.activation or self.activation,
            dropout_rate=self.params.expert_dropout_rate,
        )

    @property
    def experts(self) -> FeedForward:
        """The expert networks, stacked along E."""
        return dataclasses.replace(self.shared, num_experts=self.params.num_experts)

    def weights(self):
        """Theta: the router's gate [M, E], experts; with a shared one shared, shared_gate [M]."""
        weights = NestedMap(self.router.weights(), experts=self.experts.weights())
        if self.params.shared_expert:
            weights.shared = self.shared.weights()
            limit = (3.0 / self.model_dim) ** 0.5
            weights.shared_gate = WeightSpec((self.model_dim,), Uniform(limit), "M")
        return weights

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        mask: tf.Tensor,
        context: Context,
        token_ids: tf.Tensor | None = None,
    ) -> MoEOutput:
        """Routes every real token to its experts.

        Args:
            theta: as `weights`.
            inputs: [B, T, M].
            mask: bool [B, T], false for padding.
            context: mode and randomness.
            token_ids: int32 [B, T], for gatings that route by them.

        Raises:
            ValueError: the tokens do not divide evenly into groups, or a capacity factor is set
                and the shape of inputs is not static.
        """
        p = self.params
        dispatcher = p.dispatcher if context.training else p.eval_dispatcher
        factor = p.capacity_factor if context.training else p.eval_capacity_factor
        if factor is not None and not inputs.shape.is_fully_defined():
            raise ValueError(
                f"A capacity factor ({factor}) needs a static shape, got {inputs.shape}; set it to "
                f"None or fix the shape of the batch."
            )
        tokens, mask = self._to_groups(inputs, mask, 1 if factor is None else p.num_groups)
        capacity = expert_capacity(factor, tokens.shape[1], p.num_experts)
        scores = self.router.fprop(theta, tokens, mask, context.fold("router"))
        if token_ids is not None:
            token_ids = tf.reshape(token_ids, tf.shape(mask))
        routing = p.gating.route(scores.logits, mask, capacity, context, token_ids)
        stats = NestedMap(routing.stats | scores.stats, aux_loss=routing.aux_loss)
        stats.unused = _unused(routing, p.num_experts)
        loss = p.aux_loss_weight * stats.aux_loss + p.z_loss_weight * stats.z_loss
        routing = self._mask_outputs(routing, context.fold("output_mask"))

        def experts(theta, rows):
            return self.experts.fprop(theta, rows, context.fold("experts"))

        outputs = dispatcher(tokens, routing, capacity, experts, theta.experts)
        if p.shared_expert:
            gate = self._shared_gate(theta, tokens)
            stats.shared_gate = token_mean(gate, mask)
            stats.shared_gate_loss = token_mean(tf.abs(gate - p.shared_gate_budget), mask)
            loss += p.shared_gate_loss_weight * stats.shared_gate_loss
            outputs = self._with_shared(theta, tokens, outputs, gate, context)
        return MoEOutput(tf.reshape(outputs, tf.shape(inputs)), loss, stats)

    def _mask_outputs(self, routing, context):
        """Expert output masking. A choice's weight multiplies its output: masking either is one."""
        rate, weight = self.params.output_mask_rate, routing.weight
        if not rate:
            return routing
        if not context.training:
            return routing._replace(weight=weight * (1.0 - rate))
        keep = tf.random.stateless_uniform(tf.shape(weight), context.seed) >= rate
        return routing._replace(weight=tf.where(keep, weight, 0.0))

    def _shared_gate(self, theta, tokens):
        """g, float32 [G, S], before dropout; in float32 as the router's scores."""
        weight = tf.cast(theta.shared_gate, tf.float32)
        return tf.sigmoid(tf.einsum("GSM,M->GS", tf.cast(tokens, tf.float32), weight))

    def _with_shared(self, theta, tokens, outputs, gate, context):
        rate = self.params.shared_gate_dropout_rate
        if context.training and rate:
            draw = tf.random.stateless_uniform(tf.shape(gate), context.fold("shared_gate").seed)
            gate = tf.where(draw >= rate, gate, 0.0)
        flat = tf.reshape(tokens, [-1, self.model_dim])
        shared = self.shared.fprop(theta.shared, flat, context.fold("shared"))
        gate = tf.cast(gate, tokens.dtype)[..., None]
        return (1.0 - gate) * tf.reshape(shared, tf.shape(tokens)) + gate * outputs

    def _to_groups(self, inputs, mask, groups):
        if inputs.shape.is_fully_defined():
            tokens = inputs.shape[0] * inputs.shape[1]
            if tokens % groups:
                raise ValueError(
                    f"{inputs.shape[0]} x {inputs.shape[1]} = {tokens} tokens do not divide into "
                    f"num_groups={groups} groups; change the batch or moe.num_groups."
                )
            size = tokens // groups
        else:
            size = tf.size(mask) // groups
        grouped = tf.reshape(inputs, [groups, size, self.model_dim])
        return annotate(grouped, "GSM"), tf.reshape(mask, [groups, size])


def _unused(routing: Routing, num_experts: int) -> tf.Tensor:
    """float32 []: how many experts no choice was dispatched to."""
    dispatched = tf.cast(tf.reshape(routing.dispatched, [-1]), tf.float32)
    expert = tf.reshape(routing.expert, [-1])
    counts = tf.math.unsorted_segment_sum(dispatched, expert, num_experts)
    return tf.reduce_sum(tf.cast(counts == 0, tf.float32))
