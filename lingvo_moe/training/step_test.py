"""The training step by itself, on a task of one weight: least squares."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training import schedules
from lingvo_moe.training.optimizer import Optimizer
from lingvo_moe.training.step import LossOutput, TrainState, TrainStep

RATE = 0.5


class Descent(Optimizer):
    """Plain gradient descent."""

    def weight_slots(self, spec):
        return NestedMap()

    def update_weight(self, weight, slots, grad, spec, rate, count):
        return rate * grad, slots


class LeastSquares:
    """Σ (w · x - 1)² / denominator over rows x; a row of x needs the rung of its largest number."""

    def weights(self):
        return NestedMap(w=WeightSpec((2,), Constant(0.0), "M"))

    def in_use(self, theta):
        return theta

    def num_targets(self, batch):
        return tf.cast(tf.shape(batch.x)[0], tf.float32)

    def after_step(self, state, metrics):
        return state, metrics

    def loss(self, theta, batch, denominator, context):
        x = tf.cast(batch.x, tf.float32)
        errors = tf.square(tf.linalg.matvec(x, theta.w) - 1.0)
        draw = context.uniform([])
        metrics = NestedMap(errors=tf.reduce_sum(errors), draw=draw, square=draw**2)
        return LossOutput(tf.reduce_sum(errors) / denominator, metrics, tf.reduce_max(x))


def step_of(micro_batches, rung=None):
    return TrainStep(
        task=LeastSquares(),
        optimizer=Descent(schedule=schedules.Constant(learning_rate=RATE)),
        micro_batches=micro_batches,
        rung=rung,
    )


def state_of(w):
    return TrainState(tf.constant(0, tf.int64), NestedMap(w=tf.constant(w)), NestedMap())


def rows():
    return np.array([[1, 0], [0, 2], [1, 1], [3, 1]], np.int32)


def program(micro_batches):
    step = tf.function(step_of(micro_batches), autograph=False)
    return step.get_concrete_function(state_of([0.5, -1.0]), NestedMap(x=tf.constant(rows()))).graph


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_by_hand(micro_batches, compiled):
    w, x = np.array([0.5, -1.0], np.float32), rows()
    step = step_of(micro_batches)
    step = tf.function(step, autograph=False, jit_compile=True) if compiled else step
    state, metrics = step(state_of(w), NestedMap(x=tf.constant(x)))
    errors = x @ w - 1.0
    gradient = 2.0 * errors @ x / len(x)
    np.testing.assert_allclose(state.theta.w, w - RATE * gradient, rtol=1e-6)
    np.testing.assert_allclose(metrics.errors, np.sum(errors**2), rtol=1e-6)
    np.testing.assert_allclose(metrics.grad_norm, np.linalg.norm(gradient), rtol=1e-6)
    assert metrics.needed_rung == 3
    assert state.step == 1


def test_micro_batches_use_weights_that_are_cast_once():
    """They are cast, and so gathered, before the loop; gradients are summed in float32."""
    used = []

    class Halves(LeastSquares):
        def in_use(self, theta):
            return theta.map(lambda w: tf.cast(w, tf.bfloat16))

        def loss(self, theta, batch, denominator, context):
            used.append(theta.w.dtype)
            return super().loss(
                theta.map(lambda w: tf.cast(w, tf.float32)), batch, denominator, context
            )

    step = dataclasses.replace(step_of(4), task=Halves())
    state, _ = step(state_of([0.5, -1.0]), NestedMap(x=tf.constant(rows())))
    whole, _ = step_of(1)(state_of([0.5, -1.0]), NestedMap(x=tf.constant(rows())))
    assert set(used) == {tf.bfloat16}
    assert state.theta.w.dtype == tf.float32
    np.testing.assert_allclose(state.theta.w, whole.theta.w, rtol=1e-2)


def test_each_micro_batch_has_random_numbers_of_its_own():
    _, metrics = step_of(2)(state_of([0.0, 0.0]), NestedMap(x=tf.constant(rows())))
    # Sums over two numbers a and b: 2 (a² + b²) - (a + b)² = (a - b)².
    assert 2 * metrics.square - metrics.draw**2 > 1e-4


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("w", [[1e20, 0.0], [1e38, 0.0]])  # the loss, and the loss and gradient
def test_a_step_that_is_not_finite_changes_only_the_number_of_steps(w, compiled):
    step = step_of(2)
    step = tf.function(step, autograph=False, jit_compile=True) if compiled else step
    state, metrics = step(state_of(w), NestedMap(x=tf.constant(rows())))
    np.testing.assert_array_equal(state.theta.w, np.float32(w))
    assert (state.step, metrics.skipped_steps) == (1, 1)
    assert metrics.errors == metrics.grad_norm == metrics.learning_rate == 0


def test_what_overflows_one_micro_batch_changes_nothing():
    state, metrics = step_of(2, rung=2)(state_of([0.5, -1.0]), NestedMap(x=tf.constant(rows())))
    np.testing.assert_array_equal(state.theta.w, [0.5, -1.0])
    assert (state.step, metrics.needed_rung) == (0, 3)


def test_micro_batches_are_a_loop():
    """They run one after the other, so that memory holds the activations of one; compiled once."""
    two, four = program(2), program(4)
    assert len(two.get_operations()) == len(four.get_operations())
    (loop,) = (op for op in four.get_operations() if op.type in ("While", "StatelessWhile"))
    assert loop.get_attr("parallel_iterations") == 1
