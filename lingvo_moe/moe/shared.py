"""Networks beside the experts, for every token.  G groups, S tokens/group, M model, H hidden."""

import abc
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, Params, PositiveInt, Rate, Share
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.router import token_mean
from lingvo_moe.nn.layer import Context, Uniform, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.sbp import copies


class SharedOutput(NamedTuple):
    """The result of a policy: outputs [G, S, M], weighted loss float32 [], statistics [] each."""

    outputs: tf.Tensor
    loss: tf.Tensor | float
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shared(Params, abc.ABC):
    """A policy: which network all tokens use, and how its outputs join those of the experts."""

    @abc.abstractmethod
    def network(self, expert: FeedForward) -> FeedForward | None:
        """The network, made like one expert; None for none."""

    def weights(self, expert: FeedForward) -> NestedMap:
        """WeightSpecs: `shared`, the network; {} for none."""
        network = self.network(expert)
        return NestedMap(shared=network.weights()) if network else NestedMap()

    @abc.abstractmethod
    def fprop(
        self,
        theta: NestedMap,
        expert: FeedForward,
        inputs: tf.Tensor,
        outputs: tf.Tensor,
        tokens: Tokens,
        context: Context,
    ) -> SharedOutput:
        """Joins the network's outputs to those of the experts.

        Args:
            theta: the layer's weights, with those of `weights`.
            expert: one expert.
            inputs: [G, S, M], of the layer.
            outputs: [G, S, M], the weighted sums of the experts' outputs.
            tokens: [G, S].
            context: mode and randomness.
        """

    def _outputs(self, theta, expert, inputs, context):
        network = self.network(expert)
        assert network
        flat = tf.reshape(inputs, [-1, inputs.shape[-1]])
        outputs = network.fprop(theta.shared, flat, context.fold("shared"))
        return tf.reshape(outputs, tf.shape(inputs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone(Shared):
    """The experts have no network beside them."""

    def network(self, expert):
        return None

    def fprop(self, theta, expert, inputs, outputs, tokens, context):
        return SharedOutput(outputs, 0.0, NestedMap())


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlwaysOn(Shared):
    """The network has the hidden units of some experts; its output is added to theirs.

    Dai et al. 2024, DeepSeekMoE, arXiv 2401.06066, section 3.2.

    Attributes:
        experts: the number of experts whose hidden units it has.
    """

    experts: PositiveInt = 1

    def network(self, expert):
        return dataclasses.replace(expert, hidden_dim=self.experts * expert.hidden_dim)

    def fprop(self, theta, expert, inputs, outputs, tokens, context):
        outputs += self._outputs(theta, expert, inputs, context)
        return SharedOutput(outputs, 0.0, NestedMap())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gated(Shared):
    """Conditional MoE routing: (1-g)·shared(x) + g·moe(x), with a learned gate g = sigmoid(x·w).

    Costa-jussà et al. 2022, NLLB, arXiv 2207.04672, section 6.2. The network has the size of one
    expert.

    Attributes:
        dropout_rate: probability that in training a token's g is 0, so that it uses only the
            shared network.
        loss_weight: weight of the budget loss, the mean of |g - budget| over real tokens.
        budget: the target value of g in the budget loss.
    """

    dropout_rate: Rate = 0.0
    loss_weight: NonNegativeFloat = 0.0
    budget: Share = 0.8

    def network(self, expert):
        return expert

    def weights(self, expert):
        """See Shared; also `shared_gate` [M]."""
        m = expert.model_dim
        gate = WeightSpec((m,), Uniform((3.0 / m) ** 0.5), "M", cast=False)
        return NestedMap(super().weights(expert), shared_gate=gate)

    def fprop(self, theta, expert, inputs, outputs, tokens, context):
        """See Shared; statistics: `shared_gate`, the mean g, and the unweighted
        `shared_gate_loss`."""
        # In float32, like the router's scores.
        weight = tf.cast(theta.shared_gate, tf.float32)
        g = tf.sigmoid(copies.einsum("GSM,M->GS", tf.cast(inputs, tf.float32), weight))
        loss = token_mean(tf.abs(g - self.budget), tokens.mask)
        stats = NestedMap(shared_gate=token_mean(g, tokens.mask), shared_gate_loss=loss)
        if context.training and self.dropout_rate:
            draw = context.fold("shared_gate").uniform(tf.shape(g))
            g = tf.where(draw >= self.dropout_rate, g, 0.0)
        g = tf.cast(g, inputs.dtype)[..., None]
        outputs = (1.0 - g) * self._outputs(theta, expert, inputs, context) + g * outputs
        return SharedOutput(outputs, self.loss_weight * loss, stats)
