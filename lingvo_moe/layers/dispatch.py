"""Dispatchers: move tokens to the experts of their Routing, and the results back.

G groups split over all devices, g groups while experts are split, S tokens per group, E experts
split over devices, e experts not split, C capacity, K choices, M model, R rows.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from lingvo_moe.core.fields import Params
from lingvo_moe.core.gradients import custom_gradient
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.results import returns
from lingvo_moe.gatings.base import Routing
from lingvo_moe.layers.experts import Experts
from lingvo_moe.layers.holding import EachOnce, Holding
from lingvo_moe.sharding.annotations import annotate
from lingvo_moe.sharding.partition import manual


class Dispatched(NamedTuple):
    """The result of a dispatcher: outputs [G, S, M] and float32 statistics."""

    outputs: tf.Tensor
    stats: NestedMap


def _like_inputs(found, dispatcher, inputs, *others):
    del dispatcher, others
    spec = tf.TensorSpec(inputs.shape, inputs.dtype)
    return found if spec.is_compatible_with(found.outputs) and found.stats is not None else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispatcher(Params, abc.ABC):
    """Computes Σ_k weight_k · expert_k(token); all dispatchers agree up to rounding.

    Attributes:
        needs_static_shapes: whether all batches must have one static shape. Those of training have
            it; those of evaluation and decoding do not.
    """

    needs_static_shapes: ClassVar[bool] = False

    @property
    def holding(self) -> Holding:
        """The layout of a layer's experts when this dispatcher trains them."""
        return EachOnce()

    def check(self, moe: Any) -> None:
        """Checks the MoEParams of the layer; most dispatchers fit all.

        Raises:
            ValueError: a policy that does not fit.
        """

    def check_pieces(self, pieces: int) -> None:
        """Checks the number of pieces into which a mesh splits the experts; most fit any mesh.

        Raises:
            ValueError: it does not fit.
        """

    def check_mesh(self, moe: Any, pieces: int, places: int) -> None:
        """Checks that a layer can be trained on a mesh of several devices.

        Args:
            moe: the layer's MoEParams.
            pieces: number of pieces of the experts, letter E.
            places: number of pieces of the groups while experts are split, letter g.

        Raises:
            ValueError: the experts or groups do not divide into equal pieces, or as `check_pieces`.
        """
        self.check_pieces(pieces)
        for name, number, into in (
            ("number of experts", moe.num_experts, pieces),
            ("moe.num_groups", moe.num_groups, pieces * places),
        ):
            if number % into:
                raise ValueError(
                    f"{name}={number} must be a multiple of {into}, the pieces into which the mesh "
                    f"splits it; change the number, or the mesh."
                )

    def rows_sent(self, moe: Any, group_size: int, capacity: int) -> int:
        """Rows that a group sends in each AllToAll: E · C, used or not.

        Args:
            moe: the layer's MoEParams.
            group_size: S.
            capacity: C.
        """
        del group_size
        return moe.num_experts * capacity

    @returns("Dispatched(outputs, stats), outputs of the inputs' shape and dtype", _like_inputs)
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
class Einsum(Dispatcher):
    """GShard's Algorithm 2: one-hot tensors and matrix products, which suit TPUs."""

    def dispatch(self, inputs, routing, capacity, experts):
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
        outputs = annotate(outputs, "eGCM")
        outputs = manual(
            collect,
            [outputs, routing.weight, *choices],
            ["eGCM", "GSK", "GSK", "GSK", "GSK"],
            "GSM",
        )
        return Dispatched(outputs, NestedMap())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged(Dispatcher):
    """Sorts choices by expert; each expert computes exactly its rows, without padding.

    If loads are small or nearly even, they are padded to the largest load instead, and all experts
    are one product (see `faster_together`). Separate experts take time to start, but the weights of
    an expert without rows are then not read, as of most experts in decoding.

    It needs dynamic shapes, so it runs on TensorFlow's executor, not with XLA (use `Dropless`
    there). It ignores capacity: every choice that the routing dispatched is computed.
    """

    def check_mesh(self, moe, pieces, places):
        """See Dispatcher: only one device."""
        raise ValueError(one_device(self))

    def dispatch(self, inputs, routing, capacity, experts):
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
            faster_together(sizes, experts.separate_rows),
            lambda: on_runs(tf.fill(tf.shape(counts), most), together),
            lambda: on_runs(sizes, one_by_one),
        )
        stats = NestedMap(lost=lost(routing, computed))
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), stats)


_WEIGHT_ROWS = 10  # rows whose compute time equals the time to read an expert's weights
# oneDNN compiles a bfloat16 product for each new shape, which takes as long as computing hundreds
# of rows. So the number of rows is rounded up, to have few shapes.
_ROW_MULTIPLE = {tf.bfloat16: 32}


def one_device(dispatcher: Dispatcher) -> str:
    """The message of an error: the dispatcher cannot train on several devices."""
    return (
        f"model.moe.dispatcher={type(dispatcher).__name__}() is for one device; over many set "
        f"Einsum() or Gather(), and model.moe.num_groups to a multiple of the devices."
    )


def faster_together(sizes: tf.Tensor, separate_rows: int) -> tf.Tensor:
    """bool []: whether one product of all experts, padded to the busiest one, is faster.

    The alternative is a product for each expert that has rows, which reads no other weights.

    Args:
        sizes: int32 [E], the rows of each expert.
        separate_rows: see Experts.
    """
    used = tf.math.count_nonzero(sizes, dtype=tf.int32)
    padded = (tf.reduce_max(sizes) + _WEIGHT_ROWS) * tf.size(sizes)
    return padded <= tf.reduce_sum(sizes) + (_WEIGHT_ROWS + separate_rows) * used


def _round_up(counts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Counts of rows, rounded up to the multiple for this dtype."""
    multiple = _ROW_MULTIPLE.get(dtype, 1)
    return -(-counts // multiple) * multiple


def _in_runs(order, counts, sizes):
    """The slots of choices in runs of rows, one run for each expert, in order of experts.

    Args:
        order, counts: from `by_expert`.
        sizes: int32 [E], the rows of each run, at least counts; the rest of a run is empty.

    Returns:
        The slot of each choice, int32 [N · K] (the number of slots if not dispatched), and its
        inverse.
    """
    num_slots = tf.reduce_sum(sizes)
    place = tf.range(tf.size(order))
    expert = tf.searchsorted(tf.cumsum(counts), place, side="right")
    ahead = tf.cumsum(sizes, exclusive=True) - tf.cumsum(counts, exclusive=True)
    slot = place + tf.gather(tf.concat([ahead, [num_slots]], axis=0), expert)
    slot = tf.scatter_nd(order[:, None], tf.minimum(slot, num_slots), tf.shape(order))
    return slot, inverse(slot, num_slots)


def lost(routing: Routing, computed: tf.Tensor) -> tf.Tensor:
    """float32 []: the number of dispatched choices that are not in `computed`, bool [G, S, K] or
    [N, K]."""
    missing = tf.reshape(routing.dispatched, tf.shape(computed)) & ~computed
    return tf.reduce_sum(tf.cast(missing, tf.float32))


def by_expert(routing: Routing, num_experts: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The choices in order of experts.

    Args:
        routing: the choices [G, S, K], N = G·S tokens.
        num_experts: E.

    Returns:
        Choices (token · K + k) sorted by expert, then token, int32 [N · K], with choices that are
        not dispatched at the end; and the number of choices of each expert, int32 [E].
    """
    expert = tf.reshape(tf.where(routing.dispatched, routing.expert, num_experts), [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(expert), expert, num_experts + 1)
    return tf.argsort(expert, stable=True), counts[:-1]


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


def _token(choice: tf.Tensor, slot: tf.Tensor) -> tf.Tensor:
    """The token of each choice; N for none.

    Not by `//`, which compares with a constant 0. XLA would share this constant between
    Gather's manual regions and the rest of the program, which is an error there.
    """
    return tf.truncatediv(choice, slot.shape[1])


def gather_or_zero(rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """rows[index], and zeros where index is one past the last row.

    Not by `tf.pad`: XLA would share its 0 between manual regions and the rest of the program, and
    then abort.
    """
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
    outputs = gather_or_zero(tokens, _token(choice, slot))

    def grad(upstream):
        # Not tf.reduce_sum: XLA would share its initial 0 between Gather's manual regions and
        # the rest of the program, which is an error there.
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
        d_rows = gather_or_zero(upstream, _token(choice, slot)) * slot_weight[:, None]
        return d_rows, tf.cast(d_weight, weight.dtype), None, None

    return functools.reduce(tf.add, weighted), grad
