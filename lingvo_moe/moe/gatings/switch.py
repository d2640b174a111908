"""Top-1 gating of Switch Transformer.  G groups, S tokens per group, E experts."""

import dataclasses

import tensorflow as tf

from lingvo_moe.moe.gatings.balance_loss import BY_GROUP, BalanceLoss
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.choices import top_choices
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch(Gating):
    """Each token goes to its best expert, weighted by that expert's gate.

    Fedus et al. 2021 (arXiv 2101.03961), section 2. The weight is the softmax over all experts.
    It is not normalised over the single choice, because it would be 1 and the router would get no
    gradient from the outputs. Tokens queue in their order. Ties go to the lowest expert.

    Attributes:
        balance: the balance loss.
    """

    balance: BalanceLoss = BY_GROUP

    @property
    def choices_per_token(self):
        return 1

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        del context
        gates = tf.nn.softmax(logits)  # [G, S, E]
        weight, expert = top_choices(gates, 1)  # [G, S, 1]
        return route_choices(
            gates, expert, weight, mask, capacity, balance=self.balance, extras=extras
        )
