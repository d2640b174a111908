"""Routing within a node.  G groups, S tokens per group, E experts, N nodes, K choices."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import PositiveInt
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import NOTHING, Gating
from lingvo_moe.gatings.choices import group_counts
from lingvo_moe.gatings.queues import load_share


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnNode(Gating):
    """A token goes only to experts of its own node, which another policy chooses.

    Node n has the n-th block of E / N experts and the groups n, n + N, n + 2N, …. The policy sees
    the logits of the node's experts alone. An expert sees only one group of N, so it accepts N
    times as many choices from it.

    Attributes:
        gating: the policy.
        nodes: N; must divide E.
    """

    gating: Gating
    nodes: PositiveInt

    @property
    def batch_independent(self):
        return self.gating.batch_independent

    @property
    def choices_per_token(self):
        return self.gating.choices_per_token

    def check(self, num_experts):
        """See Gating: that of the policy, among the experts of a node."""
        try:
            self.gating.check(num_experts // self.nodes)
        except ValueError as error:
            raise ValueError(
                f"In a local step of GatingDropout(nodes={self.nodes}) a token has the experts of "
                f"its node, {num_experts // self.nodes} of {num_experts}: {error}"
            ) from error

    def state(self, num_experts):
        """See Gating: that of the policy."""
        return self.gating.state(num_experts)

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        num_experts = logits.shape[-1]
        node = tf.range(tf.shape(logits)[0]) % self.nodes  # [G]
        room = on_node_capacity(capacity, self.nodes, mask.shape[1])
        state = extras.state.map(lambda value: self._of_node(value[None, None], node))
        extras = extras._replace(state=state)
        routing = self.gating.route(self._of_node(logits, node), mask, room, context, extras)
        expert = routing.expert + (node * (num_experts // self.nodes))[:, None, None]
        wanted = routing.dispatched
        if self.batch_independent:  # the first `wanted` choices of a token
            order = tf.range(expert.shape[-1], dtype=tf.float32)
            wanted = order < routing.wanted[..., None]
        choices = group_counts(expert, wanted, num_experts)
        first = choices
        if self.batch_independent:
            first = group_counts(expert[..., :1], mask[..., None], num_experts)
        stats = NestedMap(
            routing.stats, load=load_share(first), choices=tf.reduce_sum(choices, axis=0)
        )
        return routing._replace(expert=expert, stats=stats)

    def _of_node(self, values, node):
        """[G, S, E / N]: the part of [G, S, E] or [1, 1, E] of each group's node."""
        # A gather would make XLA gather all tokens.
        shape = [*tf.unstack(tf.shape(values))[:2], self.nodes, values.shape[-1] // self.nodes]
        own = (node[:, None] == tf.range(self.nodes))[:, None, :, None]
        return tf.reduce_sum(tf.where(own, tf.reshape(values, shape), 0.0), axis=2)


def on_node_capacity(capacity: int | None, nodes: int, tokens: int | None) -> int | None:
    """The capacity of an expert that sees one group of `nodes`: N · C, at most S; None for none.

    Args:
        capacity: C.
        nodes: N.
        tokens: S; None if not static.
    """
    if capacity is None or tokens is None:
        return None
    return min(nodes * capacity, tokens)
