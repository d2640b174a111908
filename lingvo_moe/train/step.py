"""One training step as a pure function: (state, batch) -> (state, metrics)."""

import dataclasses
from typing import NamedTuple, Protocol

import tensorflow as tf

from lingvo_moe.core.layer import Context
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.random import fold_in
from lingvo_moe.train.optimizer import Optimizer, clip_by_global_norm


class TrainState(NamedTuple):
    """All that training changes.

    Attributes:
        step: int64 [], steps taken.
        theta: the weights, float32.
        slots: the optimizer's memory, a tree parallel to theta.
    """

    step: tf.Tensor
    theta: NestedMap
    slots: NestedMap


class LossOutput(NamedTuple):
    """objective [] is differentiated; metrics are sums over the batch, so that they add up."""

    objective: tf.Tensor
    metrics: NestedMap


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
        seed: of dropout and random routing; each step derives its own.
    """

    task: Trainable
    optimizer: Optimizer
    clip_norm: float | None = None
    micro_batches: int = 1
    seed: int = 0

    def __call__(self, state: TrainState, batch: NestedMap) -> tuple[TrainState, NestedMap]:
        """Takes one step.

        Args:
            state: before the step.
            batch: int32 tensors [B, …].

        Returns:
            The state after the step, and metrics: the task's own sums, `grad_norm` [] before
            clipping, and the optimizer's.
        """
        seed = fold_in([self.seed, 0], tf.cast(state.step, tf.int32))
        grads, metrics = self._gradients(state.theta, batch, seed)
        grads, metrics.grad_norm = clip_by_global_norm(grads, self.clip_norm)
        theta, slots, optimizer_metrics = self.optimizer.update(
            state.theta, state.slots, grads, state.step, self.task.weights()
        )
        metrics.update(optimizer_metrics)
        return TrainState(state.step + 1, theta, slots), metrics

    def _gradients(self, theta, batch, seed):
        denominator = self.task.num_targets(batch)
        parts = batch.map(lambda x: tf.split(x, self.micro_batches))
        grads, metrics = None, None
        for i in range(self.micro_batches):
            context = Context(fold_in(seed, i))
            part_grads, part_metrics = self._micro_batch(
                theta, parts.map(lambda p, i=i: p[i]), denominator, context
            )
            grads = part_grads if grads is None else grads.map(tf.add, part_grads)
            metrics = part_metrics if metrics is None else metrics.map(tf.add, part_metrics)
        return grads, metrics

    def _micro_batch(self, theta, batch, denominator, context):
        with tf.GradientTape() as tape:
            theta.map(tape.watch)
            output = self.task.loss(theta, batch, denominator, context)
        grads = tape.gradient(output.objective, theta)
        return grads.map(tf.convert_to_tensor), output.metrics
