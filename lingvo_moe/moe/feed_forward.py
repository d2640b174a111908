"""Position-wise feed-forward networks.  E experts, R rows, M model, H hidden."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt, Rate
from lingvo_moe.moe.activation import Activation, ReLU
from lingvo_moe.nn.layer import (
    EVALUATION,
    Context,
    Layer,
    Uniform,
    WeightSpec,
    bias_of,
    biases,
    dropout,
    stacked,
)
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp import copies


class Products(NamedTuple):
    """The products of rows and weights; the default is for one network or E equal ones.

    Attributes:
        into: (inputs, wi or wg) -> the hidden layer.
        out_of: (hidden layer, wo) -> outputs.
        add_in, add_out: (the hidden layer, wi_bias or wg_bias) and (outputs, wo_bias) -> their sum.
    """

    into: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = copies.matmul
    out_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = copies.matmul
    add_in: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = copies.add_bias
    add_out: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = copies.add_bias


DENSE = Products()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForward(Layer):
    """activation(x·wi)·wo; with `num_experts` set, E such networks.

    Attributes:
        model_dim: M.
        hidden_dim: H.
        num_experts: E, or None for one plain network.
        activation: of the hidden layer; a gated one multiplies: (activation(x·wg) ⊙ x·wi)·wo.
        dropout_rate: on the hidden layer.
        use_bias: whether each product adds a bias.
    """

    model_dim: PositiveInt
    hidden_dim: PositiveInt
    num_experts: PositiveInt | None = None
    activation: Activation = ReLU()
    dropout_rate: Rate = 0.0
    use_bias: bool = False

    def weights(self):
        """Theta: wi and, if gated, wg [E, M, H]; wo [E, H, M]; no E for a plain network.

        With biases wi_bias, wg_bias [E, H] and wo_bias [E, M] too.

        Uniform ±√(3/fan_in); the fan-in is that of one expert.
        """
        m, h = self.model_dim, self.hidden_dim
        weights = NestedMap(
            wi=WeightSpec((m, h), Uniform((3.0 / m) ** 0.5), "MH"),
            wo=WeightSpec((h, m), Uniform((3.0 / h) ** 0.5), "HM"),
        )
        if self.activation.gated:
            weights.wg = weights.wi
        if self.use_bias:
            weights.update(biases(weights))
        return weights if self.num_experts is None else stacked(weights, self.num_experts, "E")

    def fprop(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        context: Context = EVALUATION,
        products: Products = DENSE,
    ) -> tf.Tensor:
        """Applies the network, or expert e to inputs[e].

        Args:
            theta: as `weights`; a plain network also takes the slice of one expert.
            inputs: [R, M], or [E, R, M] for experts; with other products, their operand.
            context: mode and randomness, for dropout.
            products: of rows and weights.

        Returns:
            A tensor of the shape and dtype of inputs.
        """

        def into(name):
            hidden = products.into(inputs, theta[name])
            return products.add_in(hidden, theta[bias_of(name)]) if self.use_bias else hidden

        hidden = into("wi")
        if self.activation.gated:
            hidden *= self.activation(into("wg"))
        else:
            hidden = self.activation(hidden)
        hidden = dropout(hidden, self.dropout_rate, context)
        outputs = products.out_of(hidden, theta.wo)
        return products.add_out(outputs, theta.wo_bias) if self.use_bias else outputs
