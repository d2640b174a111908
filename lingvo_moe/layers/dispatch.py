"""Dispatchers: carry tokens to their experts and the results back, as a Routing says.

G groups over all devices, g groups while experts are spread, S tokens per group, E experts spread,
e experts not spread, C capacity, K choices, M model, R rows.
"""

import abc
import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import Params
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import Routing
from lingvo_moe.layers.experts import Experts
from lingvo_moe.layers.holding import EachOnce, Holding
from lingvo_moe.sharding.annotations import annotate


class Dispatched(NamedTuple):
    """What a dispatcher gives to a layer: outputs [G, S, M], and statistics, float32."""

    outputs: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispatcher(Params, abc.ABC):
    """Σ_k weight · expert_k(token), computed one way or another; all ways agree to rounding."""

    @property
    def holding(self) -> Holding:
        """How a layer holds its experts when this dispatcher trains them."""
        return EachOnce()

    @abc.abstractmethod
    def dispatch(
        self, inputs: tf.Tensor, routing: Routing, capacity: int | None, experts: Experts
    ) -> Dispatched:
        """Runs the experts on their tokens.

        Args:
            inputs: [G, S, M].
            routing: the choices [G, S, K].
            capacity: C, the bound on `routing.position`; None for no bound (then S).
            experts: with the layer's weights, held as `holding` says.

        Returns:
            Outputs, zero for tokens that no expert took. Statistics of one that has a bound of its
            own, or none: `lost` [], routed choices that were not computed.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Einsum(Dispatcher):
    """GShard's Algorithm 2: one-hot tensors and matrix products, which suits a TPU."""

    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher."""
        num_experts = experts.num_experts
        capacity = capacity or inputs.shape[1] or tf.shape(inputs)[1]
        combine = self._one_hot(routing, num_experts, capacity)  # [G, S, E, C]
        combine = annotate(tf.cast(combine, inputs.dtype), "GSeC")
        dispatch = tf.cast(combine > 0, inputs.dtype)
        expert_inputs = tf.einsum("GSEC,GSM->EGCM", dispatch, inputs, name="dispatch")
        expert_inputs = annotate(annotate(expert_inputs, "eGCM"), "EgCM")
        shape = tf.shape(expert_inputs)
        rows = tf.reshape(expert_inputs, [num_experts, -1, inputs.shape[-1]])
        expert_outputs = annotate(tf.reshape(experts.together(rows), shape), "EgCM")
        expert_outputs = tf.transpose(expert_outputs, [1, 0, 2, 3], name="to_groups")
        expert_outputs = annotate(expert_outputs, "GeCM")
        outputs = tf.einsum("GSEC,GECM->GSM", combine, expert_outputs, name="combine")
        return Dispatched(annotate(outputs, "GSM"), NestedMap())

    def _one_hot(self, routing, num_experts, capacity):
        place = tf.where(routing.dispatched, routing.position, -1)
        by_expert = tf.one_hot(routing.expert, num_experts) * routing.weight[..., None]
        return tf.einsum("GSKE,GSKC->GSEC", by_expert, tf.one_hot(place, capacity))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gather(Dispatcher):
    """The same by index: tokens are gathered into [E, G·C] slots and results gathered back.

    Forward and backward alike only gather; nothing is scattered but the small table of indices.
    """

    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher."""
        num_experts = experts.num_experts
        groups, tokens, model_dim = tf.unstack(tf.shape(inputs))
        capacity = capacity or tokens
        group = tf.range(groups)[:, None, None]
        slot = (routing.expert * groups + group) * capacity + routing.position  # [G, S, K]
        num_slots = num_experts * groups * capacity
        slot = tf.where(routing.dispatched, slot, num_slots)
        token = inverse(slot, num_slots)
        flat_slot = tf.reshape(slot, [-1, slot.shape[-1]])
        rows = permute(tf.reshape(inputs, [-1, model_dim]), flat_slot, token)
        rows = tf.reshape(rows, [num_experts, -1, inputs.shape[-1]])
        outputs = tf.reshape(experts.together(rows), [-1, model_dim])
        weight = tf.reshape(routing.weight, [-1, slot.shape[-1]])
        outputs = combine(outputs, weight, flat_slot, token)
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), NestedMap())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged(Dispatcher):
    """No slots but those in use: choices sorted by expert, each expert on as many rows as it got.

    Loads that are nearly even, or small, are padded to the largest, and all experts are one product
    a layer; to compute them one by one costs each as much as _OWN_NETWORK rows more. Then the
    weights of an expert that got no rows are not read, such as of most in decoding.

    Needs dynamic shapes, so it is for TensorFlow's own executor, not for XLA, for which `Dropless`
    does the same. Ignores capacity: what the routing dispatched is computed.
    """

    def dispatch(self, inputs, routing, capacity, experts):
        """See Dispatcher."""
        del capacity
        num_experts, model_dim = experts.num_experts, inputs.shape[-1]
        order, counts = by_expert(routing, num_experts)
        tokens = tf.reshape(inputs, [-1, model_dim])
        weight = tf.reshape(routing.weight, [-1, routing.weight.shape[-1]])
        sizes = _round_up(counts, inputs.dtype)
        most = tf.reduce_max(sizes)

        def together(rows):
            rows = tf.reshape(rows, [num_experts, most, model_dim])
            return tf.reshape(experts.together(rows), [-1, model_dim])

        def one_by_one(rows):
            runs = tf.split(rows, sizes, num=num_experts)
            pairs = zip(experts.one_by_one(), runs, strict=True)
            return tf.concat([expert(run) for expert, run in pairs], axis=0)

        def on_runs(sizes, compute):
            slot, choice = _in_runs(order, counts, sizes)
            slot = tf.reshape(slot, tf.shape(weight))
            outputs = compute(permute(tokens, slot, choice))
            return combine(outputs, weight, slot, choice), slot < tf.size(choice)

        outputs, computed = tf.cond(
            faster_together(sizes),
            lambda: on_runs(tf.fill(tf.shape(counts), most), together),
            lambda: on_runs(sizes, one_by_one),
        )
        stats = NestedMap(lost=lost(routing, computed))
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), stats)


_OWN_NETWORK = 24  # measured: 6 to 28 rows of an expert, by its size and the number of them
_WEIGHTS = 10  # rows that take as long to compute as an expert's weights to read
# A product in bfloat16 is compiled for its shape, which takes as long as hundreds of rows; so they
# come in few shapes.
_ROWS_AT_ONCE = {tf.bfloat16: 32}


def faster_together(sizes: tf.Tensor) -> tf.Tensor:
    """bool []: whether to pad experts of sizes rows, int32 [E], to the largest, for one product.

    The alternative is a product for each that has rows; others' weights are then not read.
    """
    used = tf.math.count_nonzero(sizes, dtype=tf.int32)
    padded = (tf.reduce_max(sizes) + _WEIGHTS) * tf.size(sizes)
    return padded <= tf.reduce_sum(sizes) + (_WEIGHTS + _OWN_NETWORK) * used


def _round_up(counts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Counts of rows of that type, up to the next that a product is made for."""
    at_once = _ROWS_AT_ONCE.get(dtype, 1)
    return -(-counts // at_once) * at_once


def _in_runs(order, counts, sizes):
    """Where choices lie in runs of rows, an expert after the other, the rest of each run empty.

    Args:
        order, counts: of `by_expert`.
        sizes: int32 [E], the rows of each run, no less than counts.

    Returns:
        The slot of each choice, int32 [N · K], one past the last if not dispatched; the inverse.
    """
    num_slots = tf.reduce_sum(sizes)
    place = tf.range(tf.size(order))
    expert = tf.searchsorted(tf.cumsum(counts), place, side="right")
    ahead = tf.cumsum(sizes, exclusive=True) - tf.cumsum(counts, exclusive=True)
    slot = place + tf.gather(tf.concat([ahead, [num_slots]], axis=0), expert)
    slot = tf.scatter_nd(order[:, None], tf.minimum(slot, num_slots), tf.shape(order))
    return slot, inverse(slot, num_slots)


def lost(routing: Routing, computed: tf.Tensor) -> tf.Tensor:
    """float32 []: how many routed choices were not computed, as bool [G, S, K] or [N, K] says."""
    missing = tf.reshape(routing.dispatched, tf.shape(computed)) & ~computed
    return tf.reduce_sum(tf.cast(missing, tf.float32))


def by_expert(routing: Routing, num_experts: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The choices in order of experts.

    Args:
        routing: the choices [G, S, K], N = G·S tokens.
        num_experts: E.

    Returns:
        Choices (token · K + k) sorted by expert, then token, int32 [N · K], the undispatched last;
        and how many each expert got, int32 [E].
    """
    expert = tf.reshape(tf.where(routing.dispatched, routing.expert, num_experts), [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(expert), expert, num_experts + 1)
    return tf.argsort(expert, stable=True), counts[:-1]


def inverse(slot: tf.Tensor, num_slots: tf.Tensor) -> tf.Tensor:
    """The choice (token · K + k) in each slot [num_slots], of slot's type; N · K if empty."""
    flat = tf.reshape(slot, [-1])
    choices = tf.size(flat, slot.dtype)
    table = tf.fill([num_slots + 1], choices)
    return tf.tensor_scatter_nd_update(table, flat[:, None], tf.range(choices))[:-1]


def _token(choice: tf.Tensor, slot: tf.Tensor) -> tf.Tensor:
    """The token of each choice; N for none.

    Not by `//`, which compares with 0: in LocalGather's regions XLA would share that 0 with the
    rest of the program, and such a constant can belong to one only.
    """
    return tf.truncatediv(choice, slot.shape[1])


def _gather_or_zero(rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """rows[index], and zeros where index is one past the last row."""
    return tf.gather(_with_zero(rows), index)


def _with_zero(rows: tf.Tensor) -> tf.Tensor:
    return tf.concat([rows, tf.zeros([1, *rows.shape[1:]], rows.dtype)], axis=0)


@tf.custom_gradient
def permute(tokens: tf.Tensor, slot: tf.Tensor, choice: tf.Tensor):
    """Token rows laid out by slot.

    Args:
        tokens: [N, M].
        slot: int32 [N, K], the slot of each choice; the number of slots where there is none.
        choice: int32 [number of slots], the inverse: which choice fills the slot, N · K for none.

    Returns:
        [number of slots, M], zeros in empty slots.
    """
    outputs = _gather_or_zero(tokens, _token(choice, slot))

    def grad(upstream):
        # Sums term by term, not tf.reduce_sum: XLA would share the sum's initial 0 between
        # LocalGather's regions and the rest of the program, and such a constant can belong to one
        # only.
        padded = _with_zero(upstream)
        parts = [tf.gather(padded, one) for one in tf.unstack(slot, axis=1)]
        return functools.reduce(tf.add, parts), None, None

    return outputs, grad


@tf.custom_gradient
def combine(rows: tf.Tensor, weight: tf.Tensor, slot: tf.Tensor, choice: tf.Tensor):
    """Weighted sums of each token's rows: the way back from `permute`.

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
        slot_weight = _gather_or_zero(tf.reshape(weight_cast, [-1]), choice)
        d_rows = _gather_or_zero(upstream, _token(choice, slot)) * slot_weight[:, None]
        return d_rows, tf.cast(d_weight, weight.dtype), None, None

    return functools.reduce(tf.add, weighted), grad
