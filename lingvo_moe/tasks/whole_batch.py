"""Counts the choices of a whole batch, for losses of micro-batches.  E experts."""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.tables import WholeBatch
from lingvo_moe.gatings.choices import group_counts
from lingvo_moe.layers.transformer_layer import StackOutput
from lingvo_moe.tasks.routing_metrics import choices_of, moe_layers


def whole_batch(weights: NestedMap, layers: Sequence[str], output: StackOutput) -> NestedMap:
    """The first choices of each weight that is a WholeBatch, float32 of its shape.

    Args:
        weights: WeightSpecs of the model.
        layers: names of the MoE layers.
        output: the result of the Transformer.
    """
    counts = first_counts(output)
    return NestedMap.unflatten(
        {
            path: choices_of(path, layers, counts)[..., : spec.shape[-1]]
            for path, spec in weights.flatten()
            if isinstance(spec, WholeBatch)
        }
    )


def first_counts(output: StackOutput) -> tf.Tensor:
    """float32 [layers, E]: the first choices of real tokens, before capacity."""
    names = moe_layers(output.stats)
    widest = max(output.stats[side][name].load.shape[0] for side, name in names)
    routings = [output.routings[side][name] for side, name in names]
    counts = [group_counts(r.expert[..., :1], r.wanted[..., None] > 0.0, widest) for r in routings]
    return tf.stack([tf.reduce_sum(count, axis=0) for count in counts])
