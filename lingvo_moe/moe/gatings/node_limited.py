"""A limit on the nodes of a token's experts.  G groups, S tokens per group, E experts, N nodes."""

import dataclasses
import math

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeLimited(Params):
    """The experts of a token are on few nodes. Node n has the n-th block of E / N experts.

    DeepSeek-V3 (arXiv 2412.19437), section 2.1.2. A node's score is the sum of its K / kept highest
    scores (rounded up); a token's experts are on the `kept` best nodes; of equal nodes the lowest
    is taken.

    Attributes:
        nodes: N; must divide E.
        kept: number of nodes that a token may use.

    Raises:
        ValueError: kept > nodes, or, in `check`, numbers that do not fit.
    """

    nodes: PositiveInt = 8
    kept: PositiveInt = 4

    def __post_init__(self):
        super().__post_init__()
        if self.kept > self.nodes:
            raise ValueError(f"kept={self.kept} nodes of {self.nodes}; lower kept or raise nodes.")

    def check(self, num_experts: int, k: int) -> None:
        """Checks that a token finds its experts on the nodes that it may use.

        Args:
            num_experts: E.
            k: K, choices of a token.

        Raises:
            ValueError: nodes do not divide E, or the kept ones have fewer than K experts.
        """
        if num_experts % self.nodes:
            raise ValueError(
                f"{num_experts} experts cannot be split into nodes={self.nodes} equal blocks; "
                f"change moe.num_experts or NodeLimited.nodes."
            )
        size = num_experts // self.nodes
        if self.kept * size < k:
            raise ValueError(
                f"kept={self.kept} nodes of {size} experts have fewer than k={k}; raise "
                f"NodeLimited.kept or lower k."
            )

    def limit(self, order: tf.Tensor, k: int) -> tf.Tensor:
        """The scores by which experts are chosen; the lowest float32 on nodes not allowed.

        Args:
            order: float32 [G, S, E].
            k: K, choices of a token.

        Raises:
            ValueError: as `check`.
        """
        num_experts = order.shape[-1]
        self.check(num_experts, k)
        size = num_experts // self.nodes
        shape = tf.concat([tf.shape(order)[:2], [self.nodes, size]], axis=0)
        by_node = tf.reshape(order, shape)  # [G, S, N, E / N]
        best = tf.math.top_k(by_node, min(size, math.ceil(k / self.kept))).values
        nodes = tf.math.top_k(tf.reduce_sum(best, axis=-1), self.kept).indices  # [G, S, kept]
        open_nodes = tf.reduce_sum(tf.one_hot(nodes, self.nodes), axis=2)  # [G, S, N]
        return tf.where(tf.repeat(open_nodes, size, axis=-1) > 0, order, order.dtype.min)
