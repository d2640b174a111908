"""Dispatchers: move tokens to the experts of their Routing, and the results back.

G groups split over all devices, g groups while experts are split, S tokens per group, E experts
split over devices, e experts not split, C capacity, K choices, M model, R rows.
"""

import abc
import dataclasses
import functools
import math
from typing import ClassVar, NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import Params, PositiveFloat, PositiveInt
from lingvo_moe.moe.experts import Experts
from lingvo_moe.moe.gatings.base import Routing, expert_capacity
from lingvo_moe.moe.holding import EachOnce, Holding
from lingvo_moe.nn.gradients import custom_gradient
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.sbp.annotations import annotate
from lingvo_moe.sbp.gshard import manual


class Dispatched(NamedTuple):
    """The result of a dispatcher: outputs [G, S, M] and float32 statistics."""

    outputs: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispatcher(Params, abc.ABC):
    """Computes Σ_k weight_k · expert_k(token); all dispatchers agree up to rounding.

    Attributes:
        found_in: the modules of this package that have dispatchers.
        one_device: whether it cannot train on several devices.
        one_hot: whether it computes one-hot tensors [G, S, E, C].
        groups: G; must divide the tokens of a training batch. In evaluation and decoding, where
            there may be as few tokens as sentences, G is their greatest common divisor, and 1 if
            the shape is not static.
    """

    found_in: ClassVar[tuple[str, ...]] = (
        "lingvo_moe.moe",
        "lingvo_moe.megablocks",
        "lingvo_moe.flexmoe.vexperts",
    )
    one_device: ClassVar[bool] = False
    one_hot: ClassVar[bool] = False

    groups: PositiveInt = 1

    @property
    def capacity_factor(self) -> float | None:
        """C = ceil(capacity_factor · S / E); None for no capacity."""
        return None

    @property
    def holding(self) -> Holding:
        """The layout of a layer's experts when this dispatcher trains them."""
        return EachOnce()

    @property
    def rungs(self) -> tuple["Dispatcher", ...]:
        """This dispatcher on each of its rungs (see megablocks.laddered); () without a ladder."""
        return ()

    def in_groups(self, inputs: tf.Tensor, tokens: Tokens) -> tuple[tf.Tensor, Tokens]:
        """Inputs [B, T, M] and tokens [B, T] as [G, S, M] and [G, S]."""
        known = inputs.shape.is_fully_defined()
        groups = math.gcd(self.groups, inputs.shape[0] * inputs.shape[1]) if known else 1
        size = size_of(inputs, 0) * size_of(inputs, 1) // groups
        parts = (None if part is None else tf.reshape(part, [groups, size]) for part in tokens)
        grouped = tf.reshape(inputs, [groups, size, inputs.shape[-1]])
        return grouped, Tokens(*parts)

    def capacity(self, group_size: int | None, num_experts: int) -> int | None:
        """C, the choices that an expert accepts from a group; None for no limit.

        Args:
            group_size: S; None if it is not static, as in decoding on one machine, where no token
                is dropped and a translation does not depend on the other sentences of its batch.
            num_experts: E.
        """
        return expert_capacity(self.capacity_factor, group_size, num_experts)

    def check_mesh(self, num_experts: int, pieces: int, places: int, name: str) -> None:
        """Checks that a layer can run on a mesh of several devices.

        Args:
            num_experts: E.
            pieces: number of pieces of the experts, letter E.
            places: number of pieces of the groups while experts are split, letter g.
            name: of the param with this dispatcher.

        Raises:
            ValueError: it is for one device, or the experts or groups do not divide into equal
                pieces.
        """
        if self.one_device:
            raise ValueError(
                f"{name}={type(self).__name__}() is for one device; over many set "
                f"Dropless(groups=N) or Gather(groups=N), N a multiple of the devices."
            )
        for of, number, into in (
            ("number of experts", num_experts, pieces),
            (f"{name}.groups", self.groups, pieces * places),
        ):
            if number % into:
                raise ValueError(
                    f"{of}={number} must be a multiple of {into}, the pieces into which the mesh "
                    f"splits it; change the number, or the mesh."
                )

    def rows_computed(self, num_experts: int, choices: int, group_size: int) -> int:
        """Rows that the experts compute for a group, if their loads are even.

        Args:
            num_experts: E.
            choices: K.
            group_size: S.
        """
        return num_experts * (expert_capacity(choices, group_size, num_experts) or 1)

    def rows_sent(self, num_experts: int, choices: int, group_size: int, devices: int) -> int:
        """Rows that a group sends in each AllToAll, used or not.

        Args:
            num_experts, choices, group_size: as of `rows_computed`.
            devices: number of pieces of the experts.
        """
        del devices
        return self.rows_computed(num_experts, choices, group_size)

    def numbers_sent(self, choices: int) -> int:
        """Numbers, float32, that go to an expert's device beside each row, for K choices."""
        del choices
        return 0

    @abc.abstractmethod
    def dispatch(
        self, inputs: tf.Tensor, routing: Routing, capacity: int | None, experts: Experts
    ) -> Dispatched:
        """Runs the experts on their tokens.

        Args:
            inputs: [G, S, M].
            routing: the choices [G, S, K].
            capacity: C, the bound on `routing.position`; None for no bound (then S).
            experts: with the layer's weights in the layout of `holding`.

        Returns:
            Outputs, zero for tokens without an expert. Dispatchers that ignore `capacity`, or have
            one more, report the statistic `lost` [], the number of routed choices that were not
            computed.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyShape(Dispatcher):
    """A dispatcher of batches of any shape and experts in order: it can evaluate and decode."""

    def for_xla(self, groups: int) -> "AnyShape":
        """The dispatcher of programs that XLA compiles.

        Args:
            groups: G without a capacity, which it does not change the results of.
        """
        factor = self.capacity_factor
        return Einsum(groups=self.groups if factor else groups, capacity_factor=factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffered(AnyShape):
    """A dispatcher with a buffer of C places for each expert and group.

    Attributes:
        capacity_factor: C = ceil(capacity_factor · S / E); None for no capacity, C = S.
    """

    capacity_factor: PositiveFloat | None = 2.0

    def rows_computed(self, num_experts, choices, group_size):
        """E · C, used or not."""
        return num_experts * (self.capacity(group_size, num_experts) or group_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Einsum(Buffered):
    """GShard's Algorithm 2: one-hot tensors and matrix products, which suit TPUs."""

    one_hot = True

    def dispatch(self, inputs, routing, capacity, experts):
        num_experts = experts.num_experts
        capacity = capacity or inputs.shape[1] or tf.shape(inputs)[1]
        combine = self._one_hot(routing, num_experts, capacity)  # [G, S, E, C]
        combine = tf.cast(combine, inputs.dtype)
        dispatch = tf.cast(combine > 0, inputs.dtype)
        expert_inputs = tf.einsum("GSEC,GSM->EGCM", dispatch, inputs, name="dispatch")
        expert_inputs = annotate(annotate(expert_inputs, "eGCM"), "EgCM")
        shape = tf.shape(expert_inputs)
        rows = tf.reshape(expert_inputs, [num_experts, -1, inputs.shape[-1]])
        expert_outputs = annotate(tf.reshape(experts.together(rows), shape), "EgCM")
        expert_outputs = tf.transpose(expert_outputs, [1, 0, 2, 3], name="to_groups")
        expert_outputs = annotate(expert_outputs, "GeCM")
        outputs = tf.einsum("GSEC,GECM->GSM", combine, expert_outputs, name="combine")
        return Dispatched(outputs, NestedMap())

    def _one_hot(self, routing, num_experts, capacity):
        place = tf.where(routing.dispatched, routing.position, -1)
        by_expert = tf.one_hot(routing.expert, num_experts) * routing.weight[..., None]
        return tf.einsum("GSKE,GSKC->GSEC", by_expert, tf.one_hot(place, capacity))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gather(Buffered):
    """Dispatch by index: tokens are gathered into [E, G, C] slots and results gathered back.

    The gradient gathers too; only the small table of indices is scattered.

    The compiler does not know that the indices of a group stay within the group, and would gather
    across devices. So the two gathers are in manual regions, which see only one device (GShard,
    arXiv 2006.16668, section 3.2); the compiler partitions the AllToAlls and the experts.
    """

    def dispatch(self, inputs, routing, capacity, experts):
        num_experts, model_dim = experts.num_experts, inputs.shape[-1]
        tokens = inputs.shape[1] or tf.shape(inputs)[1]
        capacity = capacity or tokens
        choices = (routing.expert, routing.position, routing.dispatched)

        def fill(inputs, *choices):
            slot, choice = slots_of(num_experts, capacity, *choices)
            rows = permute(tf.reshape(inputs, [-1, model_dim]), slot, choice)
            return tf.reshape(rows, [num_experts, -1, capacity, model_dim])

        def collect(rows, weight, *choices):
            slot, choice = slots_of(num_experts, capacity, *choices)
            flat = tf.reshape(weight, [-1, weight.shape[-1]])
            outputs = combine(tf.reshape(rows, [-1, model_dim]), flat, slot, choice)
            return tf.reshape(outputs, [-1, tokens, model_dim])

        slots = manual(fill, [inputs, *choices], ["GSM", "GSK", "GSK", "GSK"], "eGCM")
        expert_inputs = annotate(slots, "EgCM")
        rows = tf.reshape(expert_inputs, [num_experts, -1, model_dim])
        outputs = annotate(tf.reshape(experts.together(rows), tf.shape(slots)), "EgCM")
        outputs = manual(
            collect,
            [outputs, routing.weight, *choices],
            ["eGCM", "GSK", "GSK", "GSK", "GSK"],
            "GSM",
        )
        return Dispatched(outputs, NestedMap())


def lost(routing: Routing, computed: tf.Tensor) -> tf.Tensor:
    """float32 []: the number of dispatched choices that are not in `computed`, bool [G, S, K] or
    [N, K]."""
    missing = tf.reshape(routing.dispatched, tf.shape(computed)) & ~computed
    return tf.reduce_sum(tf.cast(missing, tf.float32))


def by_expert(expert: tf.Tensor, num_experts: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The choices in order of experts.

    Args:
        expert: int32 [..., K] of N tokens; E for choices that are not dispatched.
        num_experts: E.

    Returns:
        Choices (token · K + k) sorted by expert, then token, int32 [N · K], with choices that are
        not dispatched at the end; and the number of choices of each expert, int32 [E].
    """
    expert = tf.reshape(expert, [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(expert), expert, num_experts + 1)
    return tf.argsort(expert, stable=True), counts[:-1]


def expert_or_none(routing: Routing, num_experts: int) -> tf.Tensor:
    """int32 [G, S, K]: the expert of each choice, E for choices that are not dispatched."""
    return tf.where(routing.dispatched, routing.expert, num_experts)


def slots_of(num_experts, capacity, expert, position, dispatched):
    """The slot of each choice int32 [G·S, K] in [E, G, C], and the choice in each slot.

    Args:
        num_experts: E.
        capacity: C.
        expert, position: int32 [G, S, K].
        dispatched: bool [G, S, K]; other choices have the slot E · G · C.
    """
    groups = expert.shape[0] or tf.shape(expert)[0]
    slot = (expert * groups + tf.range(groups)[:, None, None]) * capacity + position
    num_slots = num_experts * groups * capacity
    slot = tf.reshape(tf.where(dispatched, slot, num_slots), [-1, expert.shape[-1]])
    return slot, inverse(slot, num_slots)


def inverse(slot: tf.Tensor, num_slots: tf.Tensor) -> tf.Tensor:
    """The choice (token · K + k) in each slot, [num_slots], with slot's dtype; N · K if empty."""
    flat = tf.reshape(slot, [-1])
    choices = tf.size(flat, slot.dtype)
    table = tf.fill([num_slots + 1], choices)
    return tf.tensor_scatter_nd_update(table, flat[:, None], tf.range(choices))[:-1]


def gather_or_zero(rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """rows[index], and zeros where index is one past the last row."""
    return tf.gather(_with_zero(rows), index)


def _with_zero(rows: tf.Tensor) -> tf.Tensor:
    return tf.concat([rows, tf.zeros([1, *rows.shape[1:]], rows.dtype)], axis=0)


@custom_gradient
def permute(tokens: tf.Tensor, slot: tf.Tensor, choice: tf.Tensor):
    """Token rows in the order of slots.

    Args:
        tokens: [N, M].
        slot: int32 [N, K], the slot of each choice; the number of slots for no slot.
        choice: int32 [number of slots], the inverse: the choice in each slot, N · K for none.

    Returns:
        [number of slots, M], zeros in empty slots.
    """
    outputs = gather_or_zero(tokens, choice // slot.shape[1])

    def grad(upstream):
        padded = _with_zero(upstream)
        parts = [tf.gather(padded, one) for one in tf.unstack(slot, axis=1)]
        return functools.reduce(tf.add, parts), None, None

    return outputs, grad


@custom_gradient
def combine(rows: tf.Tensor, weight: tf.Tensor, slot: tf.Tensor, choice: tf.Tensor):
    """Weighted sums of the rows of each token: returns what `permute` laid out.

    Args:
        rows: [number of slots, M].
        weight: float32 [N, K].
        slot: as for `permute`.
        choice: as for `permute`.

    Returns:
        [N, M].
    """
    padded = _with_zero(rows)
    parts = [tf.gather(padded, one) for one in tf.unstack(slot, axis=1)]  # K times [N, M]
    weight_cast = tf.cast(weight, rows.dtype)
    weighted = [part * weight_cast[:, k, None] for k, part in enumerate(parts)]

    def grad(upstream):
        d_weight = tf.stack([tf.einsum("NM,NM->N", part, upstream) for part in parts], axis=1)
        slot_weight = gather_or_zero(tf.reshape(weight_cast, [-1]), choice)
        d_rows = gather_or_zero(upstream, choice // slot.shape[1]) * slot_weight[:, None]
        return d_rows, tf.cast(d_weight, weight.dtype), None, None

    return functools.reduce(tf.add, weighted), grad
