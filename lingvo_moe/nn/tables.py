"""State among the weights: values that a model reads and that no gradient changes."""

import dataclasses

import tensorflow as tf

from lingvo_moe.nn.layer import Initializer, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap

PLACEMENT, EXPERTS = "placement", "experts"  # names of a table of experts and of their weights


@dataclasses.dataclass(frozen=True)
class StateSpec(WeightSpec):
    """A weight that no optimizer changes and that is never cast; float32, or a subclass's dtype.
    Because it is a weight, decoding, checkpoints and exports include it."""

    cast: bool = dataclasses.field(default=False, kw_only=True)

    def after_step(self, value: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
        """The value after a step of training; by default unchanged. choices, float32 [E], or [Y, E]
        for the layers of a scan, is the number of choices of each expert in the step, possibly with
        zeros at the end."""
        del choices
        return value


@dataclasses.dataclass(frozen=True)
class TableSpec(StateSpec):
    """The expert in each slot, int32, one of `num_experts` or -1 for none."""

    places: str = ""  # the name of the weights, beside the table, whose first dimension is slots
    num_experts: int = 0  # E


@dataclasses.dataclass(frozen=True)
class Fixed(Initializer):
    """The initial values of a table."""

    values: tuple

    def __call__(self, shape, seed):
        del seed
        return tf.constant(self.values, tf.int32, shape)


def select_state(tree: NestedMap, weights: NestedMap) -> NestedMap:
    """The state of a tree that is parallel to WeightSpecs, or a part of such a tree."""
    paths = {path for path, spec in weights.flatten() if isinstance(spec, StateSpec)}
    return NestedMap.unflatten({p: leaf for p, leaf in tree.flatten() if p in paths})


def merge_trees(*trees: NestedMap) -> NestedMap:
    """One tree with the leaves of several; of leaves at one path the last."""
    filled = [tree for tree in trees if tree]
    if len(filled) == 1:
        return filled[0]
    return NestedMap.unflatten({path: leaf for tree in filled for path, leaf in tree.flatten()})
