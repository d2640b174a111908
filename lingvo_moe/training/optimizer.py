"""The interface of optimizers: pure functions over trees of weights, gradients and slots."""

import abc
import dataclasses
from collections import defaultdict
from typing import ClassVar, NamedTuple

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, Params, Rate
from lingvo_moe.config.patterns import Factors, check_found, first_match
from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tables import StateSpec, merge_trees
from lingvo_moe.sbp.copies import lay_at_rest
from lingvo_moe.training.schedules import Schedule

EMA = "ema"  # name of the slot
# The letter of the dimension along which equal weights are stacked; no rule has it.
STACK = "*"
# Largest number of elements of a stacked weight. The update of a small weight takes as long as
# starting its ops. That of a large one is limited by memory, and stacking needs more memory
# traffic.
_MAX_STACKED_SIZE = 256 * 256


class _Moving(NamedTuple):
    """One weight, or several stacked, with gradient and slots."""

    weight: tf.Tensor
    slots: NestedMap
    grad: tf.Tensor
    spec: WeightSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Params, abc.ABC):
    """Updates weights. It *is* its params and has no state: slots are arguments and results.

    A subclass handles one weight, with `weight_slots` and `update_weight`; this class handles the
    trees. Small weights of equal specs are updated together if the subclass `takes_stacks`.

    Attributes:
        schedule: the learning rate of each step.
        weight_decay: each step subtracts learning rate times this share of every weight.
        rate_factors: (regular expression, factor), …: the first that is found in a weight's path
            multiplies its learning rate. The factor 0 freezes: such a weight has no gradient, no
            slots and no part in the gradient's norm.
        ema_decay: d of a moving average of each trained weight, a slot `ema`: after each step the
            average keeps min(d, n / (n + 9)) of itself after n steps, and takes the rest from the
            weight (Polyak & Juditsky 1992). Evaluation and decoding use it. None for no average.
        takes_stacks: whether `update_weight` accepts a first dimension STACK of independent
            weights. This is faster for updates of many small ops, but not for elementwise updates.
            A subclass that overrides `update_weight` does not inherit it, because its update may
            depend on the whole weight, such as on its norm.
    """

    takes_stacks: ClassVar[bool] = False

    schedule: Schedule
    weight_decay: NonNegativeFloat = 0.0
    rate_factors: Factors = ()
    ema_decay: Rate | None = None

    def slots(self, weights: NestedMap) -> NestedMap:
        """WeightSpecs of the slots of trained weights, at `path/of/weight/name_of_slot`.

        Slots have WeightSpecs, so they are initialised, saved and sharded like weights. Raises
        ValueError: as `factors`.
        """

        def of(spec):
            average = {} if self.ema_decay is None else {EMA: zeros_like(spec)}
            return NestedMap(self.weight_slots(spec) | average)

        found = self.split(weights, weights)[0].map(of)
        return NestedMap.unflatten(dict(found.flatten()))  # without weights that have no slots

    def flops(self, spec: WeightSpec) -> float:
        """The FLOPs of the matrix products in an update of a weight; plans count them."""
        del spec
        return 0.0

    def averaged(self, theta: NestedMap, slots: NestedMap, weights: NestedMap) -> NestedMap:
        """The weights for evaluation: the moving averages, if there are any.

        Args:
            theta: all weights.
            slots: the values of `slots`.
            weights: WeightSpecs of all weights.
        """
        if self.ema_decay is None:
            return theta
        moving, rest = self.split(theta, weights)
        return merge_trees(moving.map(lambda _, slot: slot[EMA], slots), rest)

    def factors(self, weights: NestedMap) -> dict[str, float]:
        """The factor of the learning rate of each trained weight, by path.

        State among the weights (nn.tables) and frozen weights are not trained. Raises ValueError: a
        pattern of rate_factors is found in no path, or all weights are frozen.
        """
        paths = [path for path, spec in weights.flatten() if not isinstance(spec, StateSpec)]
        field = "optimizer.rate_factors"
        check_found([pattern for pattern, _ in self.rate_factors], paths, field)
        found = {path: first_match(self.rate_factors, path, 1.0) for path in paths}
        if not any(found.values()):
            raise ValueError(f"{field}={self.rate_factors} freezes all weights; leave some out.")
        return {path: factor for path, factor in found.items() if factor}

    def split(self, tree: NestedMap, weights: NestedMap) -> tuple[NestedMap, NestedMap]:
        """The part of a tree for trained weights, and the rest.

        Args:
            tree: parallel to weights.
            weights: WeightSpecs.
        """
        moving, leaves = self.factors(weights), dict(tree.flatten())
        rest = {path: leaf for path, leaf in leaves.items() if path not in moving}
        if not rest:
            return tree, NestedMap()
        moved = {path: leaf for path, leaf in leaves.items() if path in moving}
        return NestedMap.unflatten(moved), NestedMap.unflatten(rest)

    def update(
        self,
        theta: NestedMap,
        slots: NestedMap,
        grads: NestedMap,
        step: tf.Tensor,
        weights: NestedMap,
    ) -> tuple[NestedMap, NestedMap, NestedMap]:
        """Takes one step.

        Args:
            theta: the trained weights.
            slots: the values of `slots`.
            grads: the gradient, a tree like theta.
            step: int64 [], number of earlier steps.
            weights: the WeightSpecs of all weights.

        Returns:
            theta and slots after the step, and metrics: `learning_rate` [].
        """
        count = tf.cast(step + 1, tf.float32)
        rate, factors = self.schedule(count), self.factors(weights)

        def move(factor, weight, slot, grad, spec):
            grad = lay_at_rest(grad, spec.dims)
            here = rate if factor == 1 else factor * rate
            average = slot.get(EMA)
            change, slot = self.update_weight(weight, slot, grad, spec, here, count)
            if self.weight_decay:
                change += here * self.weight_decay * weight
            after = weight - change
            if self.ema_decay is not None:
                keep = tf.minimum(self.ema_decay, (count - 1.0) / (count + 8.0))
                slot = NestedMap(slot, ema=average + (1.0 - keep) * (after - average))
            return after, slot

        held = NestedMap.unflatten({path: _subtree(slots, path) for path, _ in theta.flatten()})
        leaves = dict(theta.map(_Moving, held, grads, weights).flatten())
        moved = {}
        for paths in self._alike({p: (leaf.spec, factors[p]) for p, leaf in leaves.items()}):
            factor = factors[paths[0]]
            if len(paths) == 1:
                moved[paths[0]] = move(factor, *leaves[paths[0]])
            else:
                stack = _stacked([leaves[path] for path in paths])
                moved |= zip(paths, _unstacked(*move(factor, *stack)), strict=True)
        theta = NestedMap.unflatten({path: after for path, (after, _) in moved.items()})
        slots = NestedMap.unflatten({path: slot for path, (_, slot) in moved.items() if slot})
        return theta, slots, NestedMap(learning_rate=rate)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "update_weight" in vars(cls) and "takes_stacks" not in vars(cls):
            cls.takes_stacks = False

    def _alike(self, weights: dict[str, tuple[WeightSpec, float]]) -> list[list[str]]:
        """Groups of paths of weights that are updated together; most groups have one path.

        Args:
            weights: path -> spec and factor of the learning rate.
        """
        if not self.takes_stacks:
            return [[path] for path in weights]
        groups = defaultdict(list)
        for path, (spec, factor) in weights.items():
            groups[(spec, factor) if spec.size <= _MAX_STACKED_SIZE else path].append(path)
        return list(groups.values())

    @abc.abstractmethod
    def weight_slots(self, spec: WeightSpec) -> NestedMap:
        """The slots of one weight: WeightSpecs by name."""

    @abc.abstractmethod
    def update_weight(
        self,
        weight: tf.Tensor,
        slots: NestedMap,
        grad: tf.Tensor,
        spec: WeightSpec,
        rate: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, NestedMap]:
        """The change of one weight, without weight decay.

        Args:
            weight: its value.
            slots: its slots' values.
            grad: its gradient.
            spec: its shape and dims.
            rate: float32 [], the learning rate.
            count: float32 [], the number of this step, from 1.

        Returns the change to subtract, of the weight's shape, and the slots after the step.
        """


def _subtree(tree: NestedMap, path: str) -> NestedMap:
    """The tree at a path; empty if there is none, as for a weight without slots."""
    for key in path.split("/"):
        tree = tree.get(key, NestedMap())
    return tree


def _stacked(leaves: list[_Moving]) -> _Moving:
    """Weights of equal specs, with gradients and slots, along a new first dimension."""
    weights, slots, grads, (spec, *_) = zip(*leaves, strict=True)
    return _Moving(
        tf.stack(weights),
        slots[0].map(lambda *values: tf.stack(values), *slots[1:]),
        tf.stack(grads),
        spec.stacked(len(leaves), STACK),
    )


def _unstacked(weight: tf.Tensor, slots: NestedMap) -> list[tuple[tf.Tensor, NestedMap]]:
    """Each of the weights in a stack with its slots."""
    values = slots.map(tf.unstack)
    return [
        (one, values.map(lambda value, i=i: value[i])) for i, one in enumerate(tf.unstack(weight))
    ]


def zeros_like(spec: WeightSpec, without: int | None = None) -> WeightSpec:
    """The spec of a slot with initial value 0: the weight's shape, without an axis if given."""
    kept = [axis for axis in range(len(spec.shape)) if axis != without]
    shape = tuple(spec.shape[axis] for axis in kept)
    return WeightSpec(shape, Constant(0.0), "".join(spec.dims[axis] for axis in kept))


def clip_by_global_norm(
    grads: NestedMap, max_norm: float | None, counted: NestedMap | None = None
) -> tuple[NestedMap, tf.Tensor]:
    """Clips the gradient of all weights together to max_norm (Pascanu et al. 2013).

    Args:
        grads: float32 tensors.
        max_norm: bound on the global norm; None for no bound.
        counted: the gradients that the norm is of; None for `grads`.

    Returns:
        The gradient, and the norm before clipping, float32 []; not finite if the gradient is not.
    """
    norm = tf.linalg.global_norm([grad for _, grad in (counted or grads).flatten()])
    if max_norm is None:
        return grads, norm
    scale = max_norm / tf.maximum(norm, max_norm)
    return grads.map(lambda grad: grad * scale), norm
