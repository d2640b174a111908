"""The experts of a layer, as dispatchers call them.  E experts, R rows, M model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context, count_weights
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.layers.feed_forward import FeedForward, Products

# Measured (docs/benchmarks.md). To start the products of an expert takes a fixed time. In training
# the gradients of separate experts are written once more, into one tensor, which takes longer.
_SEPARATE_PRODUCTS = 1 << 18  # multiplications; 2 rows of an expert with 2 x 128 x 512 weights
_TRAINING_ROWS = 24


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
