"""Mixture-of-Experts layer.  G groups, S tokens/group, E experts, M model, H hidden."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.layer import Context, Layer, Uniform, WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Gating, expert_capacity
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.layers.dispatch import Dispatcher, Gather, Ragged
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.sharding.annotations import annotate


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEParams:
    """What a model says of its MoE layers.

    Attributes:
        num_experts: E.
        hidden_dim: H of one expert; None for the model's own.
        every_n: every n-th layer of a stack is an MoE layer.
        gating: the routing policy.
        num_groups: G in training; must divide the tokens of a batch.
        capacity_factor: C = ceil(capacity_factor · S / E) in training; None drops nothing.
        eval_capacity_factor: the same in evaluation and decoding. With None (the default) nothing
            is dropped and a translation depends on no other sentence of its batch.
        dispatcher: how tokens reach experts in training.
        eval_dispatcher: the same in evaluation and decoding.
        aux_loss_weight: weight of the balance loss, which reads 1.0 at perfect balance.
    """

    num_experts: int
    hidden_dim: int | None = None
    every_n: int = 2
    gating: Gating = Top2()
    num_groups: int = 1
    capacity_factor: float | None = 2.0
    eval_capacity_factor: float | None = None
    dispatcher: Dispatcher = Gather()
    eval_dispatcher: Dispatcher = Ragged()
    aux_loss_weight: float = 0.01

    def __post_init__(self):
        for name in ("num_experts", "every_n", "num_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        for name in ("capacity_factor", "eval_capacity_factor"):
            factor = getattr(self, name)
            if factor is not None and factor <= 0:
                raise ValueError(f"{name} must be > 0, or None for no limit, got {factor}.")


class MoEOutput(NamedTuple):
    """outputs [B, T, M]; aux_loss float32 []; stats as in Routing."""

    outputs: tf.Tensor
    aux_loss: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoE(Layer):
    """A router, E feed-forward experts, and the way there and back (GShard section 2).

    Attributes:
        model_dim: M.
        hidden_dim: H of one expert.
        params: the rest.
    """

    model_dim: int
    hidden_dim: int
    params: MoEParams

    @property
    def experts(self) -> FeedForward:
        """The expert networks, stacked along E."""
        return FeedForward(
            model_dim=self.model_dim,
            hidden_dim=self.hidden_dim,
            num_experts=self.params.num_experts,
        )

    def weights(self):
        """Theta: gate [M, E] and the experts' weights.

        The gate's letter is "e": its columns are neither independent experts to the optimizer nor
        split over devices, since every token is scored against all of them.
        """
        limit = (3.0 / self.model_dim) ** 0.5
        shape = (self.model_dim, self.params.num_experts)
        return NestedMap(
            gate=WeightSpec(shape, Uniform(limit), "Me"),
            experts=self.experts.weights(),
        )

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
        # The router works in float32 whatever the activations: bfloat16 would reorder near-ties.
        logits = tf.einsum(
            "GSM,ME->GSE", tf.cast(tokens, tf.float32), tf.cast(theta.gate, tf.float32)
        )
        if token_ids is not None:
            token_ids = tf.reshape(token_ids, tf.shape(mask))
        routing = p.gating.route(logits, mask, capacity, context, token_ids)
        outputs = dispatcher(tokens, routing, capacity, self.experts.fprop, theta.experts)
        return MoEOutput(tf.reshape(outputs, tf.shape(inputs)), routing.aux_loss, routing.stats)

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
