"""Top-k gating.  G groups, S tokens per group, E experts, K choices."""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import PositiveFloat, PositiveInt
from lingvo_moe.moe.gatings.balance_loss import BY_GROUP, BalanceLoss
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.choices import top_choices
from lingvo_moe.moe.gatings.loss_free import LossFree
from lingvo_moe.moe.gatings.node_limited import NodeLimited
from lingvo_moe.moe.gatings.queues import route_choices
from lingvo_moe.moe.gatings.scores import TINY, Scores, Softmax
from lingvo_moe.nn.nested_map import NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(Gating):
    """Each token goes to its k best experts.

    Shazeer et al. 2017 (arXiv 1701.06538) without its noise, with the queues and the balance loss
    of GShard: all first choices queue before all second ones, and so on; the loss counts first
    choices. Ties go to the lowest expert. `Top2` evaluates as `TopK(k=2)`.

    DeepSeek-V3 (arXiv 2412.19437, equations 12 to 20) is `TopK(k=8, scores=Sigmoid(), scale=2.5,
    bias=LossFree(), limit=NodeLimited(nodes=8, kept=4), balance=BySequence())`.

    Attributes:
        k: number of experts of a token, at most E.
        normalize: whether the weights are the scores divided by their sum over the k choices (also
            those that are dropped later); otherwise they are the scores.
        scores: function from logits to scores.
        scale: factor of the weights after normalisation.
        bias: added to the scores only for choosing; None for no bias.
        limit: limit on the nodes of a token's experts; None for no limit.
        balance: the balance loss.

    Raises:
        ValueError: k < 1, or, in `check` and `route`, k > E, or a limit that leaves fewer than k;
            in `check` k = 1 with normalize and several experts.
    """

    k: PositiveInt = 2
    normalize: bool = True
    scores: Scores = Softmax()
    scale: PositiveFloat = 1.0
    bias: LossFree | None = None
    limit: NodeLimited | None = None
    balance: BalanceLoss = BY_GROUP

    @property
    def choices_per_token(self):
        return self.k

    def check(self, num_experts):
        """See Gating: k, and the nodes of `limit`."""
        if self.k == 1 and self.normalize and num_experts > 1:
            raise ValueError(
                "k=1 with normalize=True gives each choice the weight 1, so the router would have "
                "no gradient; set normalize=False, or use Switch()."
            )
        self._check_choices(num_experts)

    def _check_choices(self, num_experts):
        if self.k > num_experts:
            raise ValueError(
                f"k={self.k} must not exceed the number of experts, {num_experts}; lower k, "
                f"or raise moe.num_experts (or moe.decoder_num_experts, where it is set)."
            )
        if self.limit:
            self.limit.check(num_experts, self.k)

    def state(self, num_experts):
        """See Gating: the bias."""
        return NestedMap(bias=self.bias.spec(num_experts)) if self.bias else NestedMap()

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        del context
        self._check_choices(logits.shape[-1])
        scores = self.scores(logits)  # [G, S, E]
        weight, expert = top_choices(scores, self.k, self._order(scores, extras.state))
        if self.normalize:
            weight /= tf.reduce_sum(weight, axis=-1, keepdims=True) + TINY
        return route_choices(
            self.scores.gates(scores),
            expert,
            self.scale * weight,
            mask,
            capacity,
            balance=self.balance,
            extras=extras,
        )

    def _order(self, scores, state):
        """float32 [G, S, E], the scores for choosing; None for the scores themselves."""
        if not self.bias and not self.limit:
            return None
        order = scores + state.bias if self.bias else scores
        return self.limit.limit(order, self.k) if self.limit else order
