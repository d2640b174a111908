"""One training step as a pure function: (state, batch) -> (state, metrics)."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import tensorflow as tf

from lingvo_moe.nn.layer import Context
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.random import fold_in
from lingvo_moe.nn.tables import merge_trees, select_state
from lingvo_moe.nn.zeros import runtime_zeros
from lingvo_moe.sbp import copies
from lingvo_moe.training.optimizer import Optimizer, clip_by_global_norm
from lingvo_moe.training.replicas import count_once, sum_replicas


class TrainState(NamedTuple):
    """The state that training changes."""

    step: tf.Tensor  # int64 [], steps taken
    theta: NestedMap  # the weights, with the state among them that is not trained (nn.tables)
    slots: NestedMap  # the optimizer's slots, a tree parallel to theta


class LossOutput(NamedTuple):
    """A task's loss and metrics of a batch."""

    objective: tf.Tensor  # float32 [], to be differentiated
    metrics: NestedMap  # sums over the batch, so that they can be added over micro-batches
    # float32 [], the lowest of TrainStep's rungs with room for this batch; None for a task without
    # rungs
    needed_rung: tf.Tensor | None = None


# Makes a context for the first run of each program of a step, which compiles the program.
Compiling = Callable[[], contextlib.AbstractContextManager[None]]

# (condition bool [], new state, old state) -> the new state if true, else the old.
Select = Callable[[tf.Tensor, TrainState, TrainState], TrainState]


def select(condition: tf.Tensor, new: TrainState, old: TrainState) -> TrainState:
    """The new state if the condition is true, else the old one; XLA fuses it with the update."""
    return tf.nest.map_structure(lambda n, o: tf.where(condition, n, o), new, old)


class _Sums(NamedTuple):
    """Sums over micro-batches; for the numbers in `most` the maximum."""

    grads: NestedMap
    metrics: NestedMap
    most: NestedMap

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(
            self.grads.map(tf.add, other.grads),
            self.metrics.map(tf.add, other.metrics),
            self.most.map(tf.maximum, other.most),
        )


class Trainable(Protocol):
    """The part of a task that training uses."""

    def weights(self) -> NestedMap:
        """The tree of WeightSpecs."""

    def num_targets(self, batch: NestedMap) -> tf.Tensor:
        """float32 []: the divisor of the loss of a whole batch."""

    def in_use(self, theta: NestedMap) -> NestedMap:
        """Casts weights, all or some, to the dtype that `loss` computes in; `loss` takes cast and
        uncast ones."""

    def loss(
        self, theta: NestedMap, batch: NestedMap, denominator: tf.Tensor, context: Context
    ) -> LossOutput:
        """The loss of a (micro-)batch, already divided by denominator."""

    def after_step(self, state: NestedMap, metrics: NestedMap) -> tuple[NestedMap, NestedMap]:
        """The state after a step with the whole batch, and the metrics to report."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStep:
    """Gradients, clipping and the optimizer's update."""

    task: Trainable  # the model and its loss
    optimizer: Optimizer  # updates the weights
    clip_norm: float | None = None  # bound on the gradient's global norm; None for none
    micro_batches: int = 1  # number of parts of the batch's rows; their gradients are summed
    # whether gradients are summed over devices after the last micro-batch instead of after each
    # (see sbp/copies.py)
    late_sums: bool = True
    seed: int = 0  # of dropout and random routing; each step derives its own
    # the same task with increasingly large buffers, the last with room for any batch; () for a task
    # without a ladder
    rungs: tuple[Trainable, ...] = ()
    rung: int | None = None  # index of `task` in rungs; None for the last

    @property
    def on_rungs(self) -> tuple["TrainStep", ...]:
        """The step on each rung; only itself without rungs."""
        if not self.rungs:
            return (self,)
        return tuple(
            dataclasses.replace(self, task=task, rung=rung) for rung, task in enumerate(self.rungs)
        )

    def __call__(
        self, state: TrainState, batch: NestedMap, choose: Select = select
    ) -> tuple[TrainState, NestedMap]:
        """Takes one step.

        A step is skipped if one of the task's sums or the gradient's norm is not finite. Then
        weights and slots do not change. The step still counts, so that the next one has other
        random numbers.

        Args:
            state: before the step.
            batch: int32 tensors [B, …].
            choose: selects the new or the old state.

        Returns:
            The state after the step, and metrics: the task's sums, `grad_norm` [] before clipping,
            the optimizer's, and `skipped_steps` [], 1 for a skipped step, whose other metrics are
            0. With rungs also `needed_rung` []. If that is above this step's rung, the state and
            its number of steps do not change, and the metrics are meaningless.
        """
        seed = fold_in([self.seed, 0], tf.cast(state.step, tf.int32))
        weights = self.task.weights()
        theta, fixed = self.optimizer.split(state.theta, weights)
        gradients = self._micro_batch if self.micro_batches == 1 else self._micro_batches
        denominator = self.task.num_targets(batch)
        sums = gradients(theta, fixed, batch, denominator, seed)
        metrics = NestedMap(sums.metrics)
        grads = sum_replicas(sums.grads, fixed, weights)
        grads, metrics.grad_norm = clip_by_global_norm(
            grads, self.clip_norm, count_once(grads, fixed, weights)
        )
        finite = _all_finite(metrics)
        theta, slots, optimizer_metrics = self.optimizer.update(
            theta, state.slots, grads, state.step, weights
        )
        metrics.update(optimizer_metrics)
        unlearnt, metrics = self.task.after_step(select_state(fixed, weights), metrics)
        metrics = metrics.map(lambda m: tf.where(finite, m, tf.zeros_like(m)))
        metrics.skipped_steps = 1.0 - tf.cast(finite, tf.float32)
        metrics.update(sums.most)
        new = TrainState(state.step + 1, merge_trees(theta, fixed, unlearnt), slots)
        done, step = finite, new.step
        if self.rung is not None:
            fits = metrics.needed_rung <= self.rung
            done, step = finite & fits, state.step + tf.cast(fits, tf.int64)
        return choose(done, new, state)._replace(step=step), metrics

    def _micro_batches(self, theta, fixed, batch, denominator, seed):
        weights = self.task.weights()
        specs, _ = self.optimizer.split(weights, weights)
        # Before the loop, so that weights that are split at rest are gathered once, after the cast.
        theta, fixed = self.task.in_use(theta), self.task.in_use(fixed)
        if self.late_sums:
            theta = copies.expand_copies(theta, specs)
        parts = batch.map(self._parts)
        sums = self._loop(theta, fixed, parts, denominator, seed, specs)
        return sums._replace(grads=copies.sum_copies(sums.grads, specs))

    def _loop(self, theta, fixed, parts, denominator, seed, specs):
        """A loop over micro-batches, so that only the activations of one are in memory."""

        @tf.function(autograph=False)
        def run(theta, fixed, parts, denominator, seed, i):
            part = parts.map(lambda rows: tf.gather(rows, i, axis=1))
            return self._micro_batch(theta, fixed, part, denominator, seed, i)

        arguments = theta, fixed, parts, denominator, seed
        run = run.get_concrete_function(*arguments, tf.TensorSpec([], tf.int32))
        nothing = tf.nest.map_structure(
            lambda one: runtime_zeros(one.shape, one.dtype, denominator), run.structured_outputs
        )
        grads = nothing.grads.map(
            lambda g, spec: copies.annotate_weight(g, spec.dims, at_rest=True), specs
        )
        _, sums = tf.while_loop(
            lambda i, _: i < self.micro_batches,
            lambda i, sums: (i + 1, sums.plus(run(*arguments, i))),
            (tf.constant(0), nothing._replace(grads=grads)),
            parallel_iterations=1,
        )
        return sums

    def _parts(self, rows):
        """[B, …] as [B / n, n, …]; micro-batch i is every n-th row, beginning with row i.

        So the rows of a device stay on this device.
        """
        return tf.reshape(rows, [-1, self.micro_batches, *rows.shape[1:]])

    def _micro_batch(self, theta, fixed, batch, denominator, seed, i=0):
        context = Context(fold_in(seed, i))
        with tf.GradientTape() as tape:
            theta.map(tape.watch)
            output = self.task.loss(merge_trees(theta, fixed), batch, denominator, context)
        grads = tape.gradient(output.objective, theta).map(tf.convert_to_tensor)
        grads = grads.map(lambda grad: tf.cast(grad, tf.float32))
        most = NestedMap()
        if output.needed_rung is not None:
            most.needed_rung = output.needed_rung
        return _Sums(grads, output.metrics, most)


def _all_finite(tree: NestedMap) -> tf.Tensor:
    """bool []: whether no element is NaN or infinite."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for _, x in tree.flatten()])
