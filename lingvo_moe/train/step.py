"""One training step as a pure function: (state, batch) -> (state, metrics)."""

import dataclasses
from typing import NamedTuple, Protocol

import tensorflow as tf

from lingvo_moe.core.layer import Context
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.random import fold_in
from lingvo_moe.core.tables import joined, learned, tables
from lingvo_moe.sharding import copies
from lingvo_moe.train.optimizer import Optimizer, clip_by_global_norm
from lingvo_moe.train.replicas import spread, summed


class TrainState(NamedTuple):
    """All that training changes.

    Attributes:
        step: int64 [], steps taken.
        theta: the weights, float32, and tables, int32.
        slots: the optimizer's memory, a tree parallel to theta.
    """

    step: tf.Tensor
    theta: NestedMap
    slots: NestedMap


class LossOutput(NamedTuple):
    """What a task says of a batch.

    Attributes:
        objective: float32 [], what is differentiated.
        metrics: sums over the batch, so that they add up.
        needed_rung: float32 [], the least of TrainStep's rungs with room for this batch; None for a
            task without rungs.
    """

    objective: tf.Tensor
    metrics: NestedMap
    needed_rung: tf.Tensor | None = None


class Trainable(Protocol):
    """What a task offers to training."""

    def weights(self) -> NestedMap:
        """The tree of WeightSpecs."""

    def num_targets(self, batch: NestedMap) -> tf.Tensor:
        """float32 []: what the loss of a whole batch is divided by."""

    def loss(
        self, theta: NestedMap, batch: NestedMap, denominator: tf.Tensor, context: Context
    ) -> LossOutput:
        """The loss of a (micro-)batch, already divided by denominator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStep:
    """Gradients, clipping and the optimizer's update.

    Attributes:
        task: the model and its loss.
        optimizer: how weights move.
        clip_norm: bound on the gradient's global norm; None for none.
        micro_batches: the batch's rows are cut into that many parts whose gradients add up.
        late_sums: whether gradients of micro-batches are summed over devices after the last one
            and not after each (see sharding/copies.py).
        seed: of dropout and random routing; each step derives its own.
        rungs: the same task with ever larger buffers, the last with room for any batch; () for a
            task that needs none.
        rung: which of them task is; None for one that has room for any batch.
    """

    task: Trainable
    optimizer: Optimizer
    clip_norm: float | None = None
    micro_batches: int = 1
    late_sums: bool = True
    seed: int = 0
    rungs: tuple[Trainable, ...] = ()
    rung: int | None = None

    @property
    def on_rungs(self) -> tuple["TrainStep", ...]:
        """The step on each rung; itself where there are none."""
        if not self.rungs:
            return (self,)
        return tuple(
            dataclasses.replace(self, task=task, rung=rung) for rung, task in enumerate(self.rungs)
        )

    def __call__(self, state: TrainState, batch: NestedMap) -> tuple[TrainState, NestedMap]:
        """Takes one step.

        Args:
            state: before the step.
            batch: int32 tensors [B, …].

        Returns:
            The state after the step, and metrics: the task's own sums, `grad_norm` [] before
            clipping, and the optimizer's; with rungs also `needed_rung` []. If that is above this
            step's rung, the state is as it was and the metrics mean nothing.
        """
        seed = fold_in([self.seed, 0], tf.cast(state.step, tf.int32))
        weights = self.task.weights()
        theta, fixed = (part(state.theta, weights) for part in (learned, tables))
        grads, metrics, needed = self._gradients(theta, fixed, batch, seed)
        grads, metrics.grad_norm = clip_by_global_norm(
            summed(grads, fixed, weights), self.clip_norm
        )
        grads = spread(grads, fixed, weights)
        theta, slots, optimizer_metrics = self.optimizer.update(
            theta, state.slots, grads, state.step, weights
        )
        metrics.update(optimizer_metrics)
        new = TrainState(state.step + 1, joined(theta, fixed), slots)
        if needed is not None:
            metrics.needed_rung = needed
        if self.rung is not None:
            done = needed <= self.rung
            new = tf.nest.map_structure(lambda new, old: tf.where(done, new, old), new, state)
        return new, metrics

    def _gradients(self, theta, fixed, batch, seed):
        specs = learned(self.task.weights(), self.task.weights())
        denominator = self.task.num_targets(batch)
        parts = batch.map(self._parts)
        if self.micro_batches > 1 and self.late_sums:
            theta = copies.show(theta, specs)
        grads, metrics, needed = None, None, None
        for i in range(self.micro_batches):
            context = Context(fold_in(seed, i))
            part_grads, (_, part_metrics, part_needed) = self._micro_batch(
                theta, fixed, parts.map(lambda p, i=i: p[i]), denominator, context
            )
            grads = part_grads if grads is None else grads.map(tf.add, part_grads)
            metrics = part_metrics if metrics is None else metrics.map(tf.add, part_metrics)
            needed = part_needed if needed is None else tf.maximum(needed, part_needed)
        return copies.summed(grads, specs), metrics, needed

    def _parts(self, rows):
        """Micro-batches: every n-th row, so that each device's share of one is of its own rows."""
        if rows.shape[0] % self.micro_batches:
            raise ValueError(
                f"{rows.shape[0]} rows do not fall into {self.micro_batches} micro-batches; change "
                f"input.batch_size or train.micro_batches."
            )
        by_part = tf.reshape(rows, [-1, self.micro_batches, *rows.shape[1:]])
        return tf.unstack(by_part, axis=1)

    def _micro_batch(self, theta, fixed, batch, denominator, context):
        with tf.GradientTape() as tape:
            theta.map(tape.watch)
            output = self.task.loss(joined(theta, fixed), batch, denominator, context)
        grads = tape.gradient(output.objective, theta)
        return grads.map(tf.convert_to_tensor), output
