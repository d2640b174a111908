"""Tables: integers among the weights, which a model reads and no optimizer changes."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.layer import Initializer, WeightSpec
from lingvo_moe.core.nested_map import NestedMap


@dataclasses.dataclass(frozen=True)
class TableSpec(WeightSpec):
    """The expert in each slot, int32, one of `num_experts` or -1 for none.

    It is one of the weights, so that decoding, saving and exporting have it. Optimizers do not
    change it.

    Attributes:
        places: the name of the weights, beside the table, whose first dimension counts slots.
        num_experts: E.
    """

    places: str = ""
    num_experts: int = 0


@dataclasses.dataclass(frozen=True)
class Fixed(Initializer):
    """The initial values of a table."""

    values: tuple

    def __call__(self, shape, seed):
        del seed
        return tf.constant(self.values, tf.int32, shape)


def learned(tree: NestedMap, weights: NestedMap) -> NestedMap:
    """The tree without its tables.

    Args:
        tree: parallel to weights.
        weights: WeightSpecs.
    """
    paths = _paths(weights)
    if not paths:
        return tree
    return NestedMap.unflatten({p: leaf for p, leaf in tree.flatten() if p not in paths})


def tables(tree: NestedMap, weights: NestedMap) -> NestedMap:
    """The tables of the tree; see `learned`."""
    paths = _paths(weights)
    return NestedMap.unflatten({p: leaf for p, leaf in tree.flatten() if p in paths})


def merge_trees(*trees: NestedMap) -> NestedMap:
    """One tree with the leaves of several, such as the results of `learned` and `tables`."""
    filled = [tree for tree in trees if tree]
    if len(filled) == 1:
        return filled[0]
    return NestedMap.unflatten({path: leaf for tree in filled for path, leaf in tree.flatten()})


def _paths(weights):
    return {path for path, spec in weights.flatten() if isinstance(spec, TableSpec)}
