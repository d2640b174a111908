"""The interface of gatings.  G groups, S tokens per group, E experts, C capacity, K choices."""

import abc
import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params
from lingvo_moe.nn.layer import Context
from lingvo_moe.nn.nested_map import NestedMap


class Routing(NamedTuple):
    """The experts of every token, by index; all dispatchers use this form.

    Attributes:
        expert: int32 [G, S, K], the expert of each choice of each token.
        position: int32 [G, S, K], the choice's position in its expert's queue, from 0; no two
            dispatched choices of one group have the same expert and position.
        weight: float32 [G, S, K], the factor of the expert's output; 0 unless dispatched.
        dispatched: bool [G, S, K], false for padding, for choices over capacity and for choices
            not taken.
        wanted: float32 [G, S], number of choices of a token before capacity; 0 for padding.
        dropped: float32 [G, S], number of them that exceed the capacity.
        aux_loss: float32 [], the balance loss, averaged over groups; 1.0 at perfect balance. It is
            a statistic.
        loss: float32 [], the same with its weight, for the objective.
        stats: NestedMap of float32 statistics: `load` [E], each expert's share of the first
            choices; `choices` [E], number of choices of an expert before capacity; `drop_rate` [],
            dropped / wanted.
        confidence: float32 [G, S], the softmax of the scores at a token's first choice; None until
            `Gating.choose` has filled it in.
    """

    expert: tf.Tensor
    position: tf.Tensor
    weight: tf.Tensor
    dispatched: tf.Tensor
    wanted: tf.Tensor
    dropped: tf.Tensor
    aux_loss: tf.Tensor
    stats: NestedMap
    loss: tf.Tensor | float = 0.0
    confidence: tf.Tensor | None = None


class Extras(NamedTuple):
    """Inputs of some policies besides the logits.

    Attributes:
        token_ids: int32 [G, S], ids of the tokens.
        segments: int32 [G, S], the number of the token's sentence in its row; see nn.tokens.
        row_length: T; the tokens of all groups are consecutive rows of this length.
        state: the values of `Gating.state`.
    """

    token_ids: tf.Tensor | None = None
    segments: tf.Tensor | None = None
    row_length: int | tf.Tensor | None = None
    state: NestedMap = NestedMap()


NOTHING = Extras()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gating(Params, abc.ABC):
    """A policy that chooses experts from router logits."""

    @property
    def batch_independent(self) -> bool:
        """Whether, without a capacity, a token's experts depend on that token alone."""
        return True

    @property
    def choices_per_token(self) -> int:
        """K, the number of experts that a token chooses; plans without a capacity use it."""
        return 2

    def check(self, num_experts: int) -> None:
        """Checks that the policy can choose among so many experts.

        Raises:
            ValueError: it cannot.
        """
        del num_experts

    def state(self, num_experts: int) -> NestedMap:
        """StateSpecs of values that the policy keeps from step to step; most policies have none."""
        del num_experts
        return NestedMap()

    def choose(
        self,
        logits: tf.Tensor,
        mask: tf.Tensor,
        capacity: int | None,
        context: Context,
        extras: Extras,
    ) -> Routing:
        """The result of `route`, with its confidence.

        Raises:
            ValueError: `route` gave choices of another form.
        """
        routing = self.route(logits, mask, capacity, context, extras)
        for tensor, dtype in ((routing.expert, tf.int32), (routing.weight, tf.float32)):
            if tensor.dtype != dtype or tensor.shape.rank != 3:
                raise ValueError(
                    f"{type(self).__module__}.{type(self).__name__}: the experts and weights of "
                    f"its Routing must be int32 and float32 [G, S, K]; got {tensor.dtype.name} "
                    f"{tensor.shape}."
                )
        is_first = tf.one_hot(routing.expert[..., 0], logits.shape[-1])
        gate = tf.reduce_sum(tf.nn.softmax(logits) * is_first, axis=-1)
        return routing._replace(confidence=gate, loss=tf.convert_to_tensor(routing.loss))

    @abc.abstractmethod
    def route(
        self,
        logits: tf.Tensor,
        mask: tf.Tensor,
        capacity: int | None,
        context: Context,
        extras: Extras = NOTHING,
    ) -> Routing:
        """Chooses experts.

        Args:
            logits: float32 [G, S, E], the router's scores.
            mask: bool [G, S], true for real tokens; padding takes no place and is not counted.
            capacity: C, the number of choices that an expert accepts from one group; None for no
                limit.
            context: mode and randomness.
            extras: other inputs.

        Returns:
            The Routing.
        """


def expert_capacity(
    capacity_factor: float | None, group_size: int | None, num_experts: int
) -> int | None:
    """C = ceil(capacity_factor · S / E), at least 1 and at most S; None means no limit.

    GShard section 2.2. The factor is for all choices together: 2.0 is suitable for top-2, 1.0 for
    top-1.
    """
    if capacity_factor is None or group_size is None:
        return None
    exact = round(capacity_factor * group_size / num_experts, 6)  # 1.1 · 100 / 10 is 11, not 11+ε
    return max(1, min(group_size, math.ceil(exact)))
