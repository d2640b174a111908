"""Balance losses, which make a router use all experts equally.

G groups, S tokens per group, E experts, K choices, B rows, T length of a row.
"""

import abc
import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, Params
from lingvo_moe.moe.gatings.base import NOTHING, Extras
from lingvo_moe.moe.gatings.choices import group_counts, top_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceLoss(Params, abc.ABC):
    """A loss that is 1.0 at perfect balance: E times shares of choices times mean gates.

    Attributes:
        weight: its factor in the objective.
    """

    weight: NonNegativeFloat = 0.01

    @abc.abstractmethod
    def __call__(
        self, gates: tf.Tensor, expert: tf.Tensor, mask: tf.Tensor, extras: Extras = NOTHING
    ) -> tf.Tensor:
        """float32 [], without the weight, differentiable through the gates.

        Args:
            gates: float32 [G, S, E]; those of a token sum to 1.
            expert: int32 [G, S, K], the choices, best first.
            mask: bool [G, S], real tokens.
            extras: other inputs.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByGroup(BalanceLoss):
    """GShard's: E · Σ_e f_e · m_e in each group, averaged over the groups that have tokens.

    Algorithm 1's ℓ_aux = (1/E)·Σ_e …, times E². f_e is the share of tokens whose first choice is e,
    those over capacity included; m_e is the mean gate.
    """

    def __call__(self, gates, expert, mask, extras=NOTHING):
        del extras
        real = tf.cast(mask, tf.float32)
        tokens = tf.maximum(tf.reduce_sum(real, axis=1, keepdims=True), 1.0)  # [G, 1]
        mean_gates = tf.reduce_sum(gates * real[..., None], axis=1) / tokens
        counts = group_counts(expert[..., :1], mask[..., None], gates.shape[-1])
        share = counts / tf.maximum(tf.reduce_sum(counts, axis=1, keepdims=True), 1.0)
        per_group = tf.reduce_sum(share * mean_gates, axis=-1) * gates.shape[-1]
        occupied = tf.cast(tf.reduce_any(mask, axis=1), tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(per_group * occupied), tf.reduce_sum(occupied))


BY_GROUP = ByGroup()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BySequence(BalanceLoss):
    """DeepSeek-V3's: Σ_e f_e · P_e in each sentence, averaged over sentences.

    arXiv 2412.19437, equations 17 to 20. f_e is E / (K · length) times the number of the sentence's
    tokens with e among their K highest gates, without any bias or limit; P_e is the mean gate. A
    sentence is a segment of a packed row. The paper's weight is 0.0001, together with `LossFree`.
    """

    weight: NonNegativeFloat = 0.0001

    def __call__(self, gates, expert, mask, extras=NOTHING):
        """As in BalanceLoss; the extras have segments."""
        choices, num_experts = expert.shape[-1], gates.shape[-1]
        favoured = tf.one_hot(top_choices(tf.stop_gradient(gates), choices)[1], num_experts)

        def rows(by_group):  # [G, S, …] -> [B, T, …]
            return tf.reshape(by_group, [-1, extras.row_length, *by_group.shape[2:]])

        segments, real = rows(extras.segments), tf.cast(rows(mask), tf.float32)
        same = tf.cast(segments[:, :, None] == segments[:, None, :], tf.float32)
        same *= real[:, :, None] * real[:, None, :]  # [B, T, T]
        length = tf.reduce_sum(same, axis=-1)  # [B, T], of the sentence that a token is in
        share = tf.einsum("BTU,BUE->BTE", same, rows(tf.reduce_sum(favoured, axis=2)))
        total_gates = tf.einsum("BTU,BUE->BTE", same, rows(gates))
        products = tf.reduce_sum(share * total_gates, axis=-1) * num_experts / choices
        # Each token has the sum of its sentence, so it is weighted by 1 / length.
        loss = tf.reduce_sum(tf.math.divide_no_nan(products, length**3))
        return tf.math.divide_no_nan(loss, tf.reduce_sum(tf.math.divide_no_nan(real, length)))
