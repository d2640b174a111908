"""Metrics of the MoE layers' routing, as sums that can be added over batches.

G groups, S tokens, K choices, E experts, P language pairs.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from lingvo_moe.layers.transformer_layer import StackOutput
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.nested_map import NestedMap

_PER_LAYER = ("entropy", "capacity")
_PER_EXPERT = ("load", "importance")


def moe_layers(stats: Mapping[str, Mapping]) -> list[tuple[str, str]]:
    """(side, layer) of each MoE layer, in the order of the rows of `routing_metrics`."""
    return [(side, layer) for side in ("encoder", "decoder") for layer in sorted(stats[side])]


def routing_metrics(
    output: StackOutput,
    pair_ids: Mapping[str, tf.Tensor],
    num_pairs: int,
    tokens: tf.Tensor,
    training: bool,
    group_loads: bool = False,
    tokens_choose: bool = True,
) -> NestedMap:
    """The metrics of a Transformer's MoE layers.

    Args:
        output: of the Transformer.
        pair_ids: "encoder" and "decoder" -> int32 [B, L] and [B, T].
        num_pairs: P.
        tokens: float32 [], real target tokens: the weight of means.
        training: whether to skip counts that are expensive for large models.
        group_loads: whether to count `group_load`.
        tokens_choose: whether tokens choose experts, so that choices before capacity are known. If
            experts choose tokens, the choices that were made are counted.

    Returns:
        float32, weighted by tokens: `aux_loss` and `z_loss` [], unweighted, averaged over layers;
        for each layer a row of `entropy`, `capacity`, `num_experts` and, if there is one,
        `shared_gate` [layers]; `load` and `importance` [layers, E], with zeros at the end of a
        layer of fewer experts. Counts, of choices before capacity unless said otherwise: `choices`
        [layers, E] likewise; `pair_wanted` and, of dropped ones, `pair_dropped` [layers, P]; with a
        dropless dispatcher `lost` [layers], choices that it did not compute. Not in training:
        `pair_load` [layers, P, E], by tokens of a pair, `pair_first`, of first choices alone,
        and `pair_confidence`, the sum of their gates. In training with VExperts `source_load`
        [layers, D, E], made on each device of a placement. With group_loads `group_load`
        [layers, G, E], of each group.
    """
    names = moe_layers(output.stats)
    layers = [output.stats[side][name] for side, name in names]
    experts = [stats.load.shape[0] for stats in layers]
    widest = max(experts)

    def rows(name):
        return tf.stack([stats[name] for stats in layers])

    means = NestedMap(
        {name: rows(name) for name in _PER_LAYER},
        aux_loss=tf.reduce_mean(rows("aux_loss")),
        z_loss=tf.reduce_mean(rows("z_loss")),
        num_experts=tf.constant(experts, tf.float32),
    )
    if "shared_gate" in layers[0]:
        means.shared_gate = rows("shared_gate")

    def wide_rows(name):
        return tf.stack([tf.pad(s[name], [[0, widest - s[name].shape[0]]]) for s in layers])

    means.update({name: wide_rows(name) for name in _PER_EXPERT})
    metrics = means.map(lambda value: value * tokens)
    metrics.choices = wide_rows("choices")
    routed = [(output.routings[side][name], pair_ids[side]) for side, name in names]
    if tokens_choose:
        routed = [(before_capacity(routing), pairs) for routing, pairs in routed]
    for name in ("wanted", "dropped"):
        metrics[f"pair_{name}"] = tf.stack(
            [
                tf.math.unsorted_segment_sum(
                    *(tf.reshape(x, [-1]) for x in (getattr(r, name), pairs)), num_pairs
                )
                for r, pairs in routed
            ]
        )
    if "lost" in layers[0]:
        metrics.lost = rows("lost")
    if "source_load" in layers[0]:
        metrics.source_load = tf.stack(
            [tf.pad(s.source_load, [[0, 0], [0, widest - s.source_load.shape[1]]]) for s in layers]
        )
    if group_loads:
        metrics.group_load = tf.stack(
            [
                _count(r.dispatched, r.expert, tf.range(groups)[:, None, None], groups, widest)
                for r, _ in routed
                if (groups := r.expert.shape[0])
            ]
        )
    if not training:
        counts = [_of_pairs(routing, pairs, num_pairs, widest) for routing, pairs in routed]
        fields = ("pair_load", "pair_first", "pair_confidence")
        metrics.update(zip(fields, map(tf.stack, zip(*counts, strict=True)), strict=True))
    return metrics


def _of_pairs(routing, pairs, num_pairs, num_experts):
    """The choices of each expert by tokens of each pair, the first ones, and sums of their gates,
    float32 [P, E] each."""
    row = tf.reshape(pairs, tf.concat([tf.shape(routing.wanted), [1]], axis=0))  # [G, S, 1]
    of = routing.expert, row, num_pairs, num_experts
    first = tf.cast(routing.dispatched[..., :1], tf.float32)
    of_first = routing.expert[..., :1], *of[1:]
    sure = first * routing.confidence[..., None]
    return _count(routing.dispatched, *of), _count(first, *of_first), _count(sure, *of_first)


def _count(counted, expert, row, num_rows, num_experts):
    """float32 [num_rows, num_experts]: `counted` summed by row and expert."""
    cell = tf.reshape(row * num_experts + expert, [-1])
    counted = tf.reshape(tf.cast(counted, tf.float32), [-1])
    counts = tf.math.unsorted_segment_sum(counted, cell, num_rows * num_experts)
    return tf.reshape(counts, [num_rows, num_experts])


def choices_of(path: str, layers: Sequence[str], choices: tf.Tensor) -> tf.Tensor:
    """The rows of choices [layers, E] of the layer of a weight's path, or of all layers of a scan,
    [Y, E]; `layers` are the names of the rows."""
    side, layer = path.split("/")[:2]
    if layer != "block":
        return choices[layers.index(f"{side}/{layer}")]
    rows = [i for i, name in enumerate(layers) if name.startswith(f"{side}/")]
    return tf.gather(choices, rows)


def max_vio(choices: tf.Tensor, num_experts: Sequence[int]) -> tf.Tensor:
    """MaxVio (Wang et al. 2024, arXiv 2408.15664, equation 4) of each layer, float32 [layers].

    The busiest expert's choices over the mean, minus 1: 0 is balance, E - 1 is collapse. 0 without
    choices, float32 [layers, E], with zeros at the end of a layer of fewer experts.
    """
    total = tf.reduce_sum(choices, axis=1)
    most = tf.reduce_max(choices, axis=1) * tf.constant(num_experts, tf.float32)
    return tf.math.divide_no_nan(most - total, total)


def unused_experts(choices: tf.Tensor, num_experts: Sequence[int]) -> tf.Tensor:
    """The number of experts that no token chose, float32 [layers]; arguments as of `max_vio`."""
    used = tf.math.count_nonzero(choices, axis=1, dtype=tf.int32)
    return tf.cast(tf.constant(num_experts, tf.int32) - used, tf.float32)


def needed_rung(output: StackOutput) -> tf.Tensor | None:
    """float32 []: the highest rung that an MoE layer needed; None if no layer has rungs."""
    layers = [stats for side in output.stats.values() for stats in side.values()]
    needed = [stats.rung for stats in layers if "rung" in stats]
    return tf.reduce_max(tf.stack(needed)) if needed else None


def before_capacity(routing: Routing) -> Routing:
    """The routing with all wanted choices as `dispatched`, for gatings where tokens choose."""
    choice = tf.range(float(routing.expert.shape[-1]))
    return routing._replace(dispatched=choice < routing.wanted[..., None])
