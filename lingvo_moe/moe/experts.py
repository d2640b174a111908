"""The experts of a layer, as dispatchers call them.  E experts, R rows, M model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveInt, Rate
from lingvo_moe.moe.activation import Activation
from lingvo_moe.moe.feed_forward import FeedForward, Products
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.layer import EVALUATION, Context, count_weights
from lingvo_moe.nn.nested_map import NestedMap

# Measured. To start the products of an expert takes a fixed time. In training the gradients of
# separate experts are written once more, into one tensor, which takes longer.
_SEPARATE_PRODUCTS = 1 << 18  # multiplications; 2 rows of an expert with 2 x 128 x 512 weights
_TRAINING_ROWS = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertParams(Params):
    """The params of one expert.

    Attributes:
        hidden_dim: H, its hidden units; None for the model's hidden_dim.
        activation: None for the model's activation.
        dropout_rate: dropout on the hidden layer in training (Fedus et al. 2021, arXiv 2101.03961,
            section 2.4, with 0.4 in fine-tuning). Masks of `Ragged`, `Dropless` and `VExperts` are
            not those of other dispatchers, and depend on the loads, the last two's on the mesh too.
        mask_rate: p of expert output masking (Costa-jussà et al. 2022, arXiv 2207.04672, section
            6.2): in training each output of an expert for a token is set to zero with probability
            p, without rescaling; in evaluation all outputs are multiplied by 1-p.
    """

    hidden_dim: PositiveInt | None = None
    activation: Activation | None = None
    dropout_rate: Rate = 0.0
    mask_rate: Rate = 0.0

    def mask(self, routing: Routing, context: Context) -> Routing:
        """Expert output masking, by the weights of choices, which multiply the outputs."""
        rate, weight = self.mask_rate, routing.weight
        if not rate:
            return routing
        if not context.training:
            return routing._replace(weight=weight * (1.0 - rate))
        keep = context.uniform(tf.shape(weight)) >= rate
        return routing._replace(weight=tf.where(keep, weight, 0.0))


class Experts(Protocol):
    """E networks with their weights, and three ways to apply them to rows."""

    @property
    def theta(self) -> NestedMap:
        """The layer's weights, as its Holding has them."""

    @property
    def num_experts(self) -> int:
        """E, along the first dimension of theta.experts."""

    @property
    def separate_rows(self) -> int:
        """The number of rows that take as long to compute as it takes to compute an expert apart
        from the others, in addition to its own rows."""

    def together(self, rows: tf.Tensor) -> tf.Tensor:
        """[E, R, M] -> [E, R, M]: applies expert e to rows[e]."""

    def one_by_one(self) -> list[Callable[[tf.Tensor], tf.Tensor]]:
        """For each expert a function [R, M] -> [R, M]."""

    def by_products(self, rows: tf.Tensor, products: Products) -> tf.Tensor:
        """Rows -> rows of the same shape; the products select the expert of each row."""


@dataclasses.dataclass(frozen=True)
class HeldExperts:
    """Experts that are feed-forward networks.

    Attributes:
        network: of E experts.
        theta: the layer's weights, `experts` among them.
        context: mode and randomness, for dropout.
    """

    network: FeedForward
    theta: NestedMap
    context: Context = EVALUATION

    @property
    def num_experts(self) -> int:
        return self.theta.experts.wi.shape[-3]  # [E, M, H], or with copies in front

    @property
    def separate_rows(self):
        """See Experts."""
        if self.context.training:
            return _TRAINING_ROWS
        of_all = count_weights(self.network.weights())
        return _SEPARATE_PRODUCTS * (self.network.num_experts or 1) // of_all

    def together(self, rows):
        return self.network.fprop(self.theta.experts, rows, self.context)

    def one_by_one(self):
        """See Experts; the dropout of each expert is independent."""
        # tf.unstack copies nothing. With indexing, the gradient of each expert would have the size
        # of all weights.
        thetas = self.theta.experts.map(tf.unstack)
        return [
            functools.partial(
                self.network.fprop,
                thetas.map(lambda of, e=e: of[e]),
                context=self.context.fold(str(e)),
            )
            for e in range(self.num_experts)
        ]

    def by_products(self, rows, products):
        return self.network.fprop(self.theta.experts, rows, self.context, products)
