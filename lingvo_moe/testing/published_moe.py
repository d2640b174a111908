"""GShard's MoE layer as published: the twin in tests and the baseline in benchmarks.

G groups, S tokens per group, E experts, C capacity, M model, H hidden.
"""

from typing import Any

import tensorflow as tf

from lingvo_moe.moe.layer import MoEOutput
from lingvo_moe.nn.layer import Context
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens


class Published:
    """Algorithms 1 and 2 of arXiv 2006.16668, step by step, in tensors [G, S, E] and [G, S, E, C].

    Second choices are always dispatched. Inputs have groups and no padding. The results equal those
    of `MoE` with `TopK(k=2)` and `Einsum()` up to rounding.
    """

    def __init__(self, num_experts: int, capacity: int):
        """E and C."""
        self._num_experts, self._capacity = num_experts, capacity

    def fprop(
        self, theta: NestedMap, inputs: tf.Tensor, tokens: Tokens, context: Context
    ) -> MoEOutput:
        """See MoE.fprop; inputs are [G, S, M]."""
        del tokens, context
        combine, loss = self._gating(tf.einsum("GSM,ME->GSE", inputs, theta.gate))
        dispatch = tf.cast(combine > 0, inputs.dtype)
        rows = tf.einsum("GSEC,GSM->EGCM", dispatch, inputs)
        hidden = tf.nn.relu(tf.einsum("EGCM,EMH->EGCH", rows, theta.experts.wi))
        outputs = tf.einsum("EGCH,EHM->GECM", hidden, theta.experts.wo)
        unused: Any = None
        return MoEOutput(tf.einsum("GSEC,GECM->GSM", combine, outputs), loss, unused, unused)

    def _gating(self, logits):
        gates = tf.nn.softmax(logits)
        first = tf.one_hot(tf.argmax(gates, axis=-1), self._num_experts)
        second = tf.one_hot(tf.argmax(gates * (1.0 - first), axis=-1), self._num_experts)
        gate_1, gate_2 = (tf.reduce_sum(gates * mask, axis=-1) for mask in (first, second))
        both = gate_1 + gate_2
        queued = tf.reduce_sum(first, axis=1, keepdims=True)
        tokens = tf.cast(tf.shape(gates)[1], tf.float32)
        mean_gates = tf.reduce_mean(gates, axis=1, keepdims=True)
        loss = tf.reduce_mean(queued / tokens * mean_gates) * self._num_experts**2
        combine = self._combine(gate_1 / both, first, 0.0)
        combine += self._combine(gate_2 / both, second, queued)
        return combine, 0.01 * loss  # the weight of the balance loss

    def _combine(self, gate, mask, queued):
        place = tf.reduce_sum((tf.cumsum(mask, axis=1, exclusive=True) + queued) * mask, axis=-1)
        # The one-hot vector of a position above capacity is zero.
        by_place = tf.one_hot(tf.cast(place, tf.int32), self._capacity)
        return gate[..., None, None] * mask[..., None] * by_place[:, :, None, :]
