"""Adafactor: Adam's scaling with a fraction of its memory, and a bound on each update."""

import dataclasses
import math
from typing import ClassVar

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, PositiveFloat, PositiveInt, Rate
from lingvo_moe.nn.layer import WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.sbp.copies import lay_at_rest
from lingvo_moe.training.optimizer import STACK, Optimizer, zeros_like
from lingvo_moe.training.schedules import InverseSquareRoot, Schedule

_SQUARED_GRAD_FLOOR = 1e-30
# Lower bound on a row's second moment, as a share of the mean over rows. Without it the inverse for
# rows without a gradient could exceed float32.
_ROW_SHARE_FLOOR = 1e-30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """Shazeer & Stern 2018 (arXiv 1804.04235), with GShard's settings.

    The second moment of a matrix is kept as its means over rows and over columns. The root mean
    square of a change is at most clip_threshold · rate · max(RMS(weight), min_scale). Experts and
    the layers of a scan count as independent weights: rows, columns, clipping and scale are
    computed for each separately, so stacking weights does not change results.

    Slots: `row` and `col` where factored, else `full`; `momentum` if beta1 > 0.

    Attributes:
        beta1: momentum of the change; 0 for none.
        beta2: bound of the second moment's decay, min(1 - step^-beta2_exponent, beta2).
        beta2_exponent: see beta2.
        clip_threshold: the bound on the root mean square of an update before it is scaled.
        min_scale: lower bound on the scale of a weight.
        min_dim_size_to_factor: a matrix with a smaller side keeps its full second moment.
        batch_dims: letters of dimensions of independent weights.
    """

    schedule: Schedule = InverseSquareRoot()
    beta1: Rate = 0.0
    beta2: Rate = 0.99
    beta2_exponent: NonNegativeFloat = 0.8
    clip_threshold: PositiveFloat = 1.0
    min_scale: NonNegativeFloat = 1e-3
    min_dim_size_to_factor: PositiveInt = 128
    batch_dims: str = "EY"

    takes_stacks: ClassVar[bool] = True

    def weight_slots(self, spec):
        slots = NestedMap()
        if factored := self.factored_axes(spec):
            row_axis, col_axis = factored
            slots.row, slots.col = (
                zeros_like(spec, without=col_axis),
                zeros_like(spec, without=row_axis),
            )
        else:
            slots.full = zeros_like(spec)
        if self.beta1:
            slots.momentum = zeros_like(spec)
        return slots

    def update_weight(self, weight, slots, grad, spec, rate, count):
        axes = self.weight_axes(spec)
        scale, mean_square, new_slots = self._second_moment(slots, grad, spec, count)
        step = rate * tf.maximum(rms(weight, axes), self.min_scale)
        step /= tf.maximum(1.0, tf.sqrt(mean_square) / self.clip_threshold)
        change = grad * scale(step)
        if self.beta1:
            change = self.beta1 * slots.momentum + (1.0 - self.beta1) * change
            new_slots.momentum = change
        return change, new_slots

    def _second_moment(self, slots, grad, spec, count):
        """The scaling of the update grad / √moment by the gradient's second moment.

        For large weights memory limits the speed. So the only tensors of a weight's size are its
        squares and the factor of the gradient. Returns a function, step -> step / √moment, where
        step has size 1 along the weight's axes; the mean square of the update, of step's shape; and
        the slots after this step.
        """
        beta2 = tf.minimum(1.0 - count**-self.beta2_exponent, self.beta2)
        axes, squared = self.weight_axes(spec), tf.square(grad)

        def mix(old, new):
            return beta2 * old + (1.0 - beta2) * (new + _SQUARED_GRAD_FLOOR)

        factored = self.factored_axes(spec)
        if not factored:
            full = mix(slots.full, squared)
            inverse = tf.math.rsqrt(full)
            update_square = mean_of(tf.square(grad * inverse), axes)
            return lambda step: step * inverse, update_square, NestedMap(full=full)
        row_axis, col_axis = factored
        row = mix(slots.row, tf.reduce_mean(squared, col_axis))
        col = mix(slots.col, tf.reduce_mean(squared, row_axis))
        # moment = row · col / mean(row), one inverse a row and one a column
        of_all = mean_of(row, [row_axis])
        of_row = tf.expand_dims(of_all / tf.maximum(row, of_all * _ROW_SHARE_FLOOR), col_axis)
        of_col = tf.expand_dims(1.0 / col, row_axis)
        of_row, of_col = (
            lay_at_rest(of, spec.dims[:axis] + "." + spec.dims[axis + 1 :])
            for of, axis in ((of_row, col_axis), (of_col, row_axis))
        )
        by_row = tf.reduce_sum(squared * of_col, col_axis, keepdims=True)
        # Divided last, as in mean_of: an output [A, M] with A = E has the shape of experts' rows.
        update_square = mean_of(by_row * of_row, axes) / spec.shape[col_axis]

        def scale(step):
            return (step * tf.sqrt(of_row)) * tf.sqrt(of_col)

        return scale, update_square, NestedMap(row=row, col=col)

    def weight_axes(self, spec: WeightSpec) -> list[int]:
        """The axes of one weight, without those of independent weights."""
        independent = self.batch_dims + STACK
        return [axis for axis, letter in enumerate(spec.dims) if letter not in independent]

    def factored_axes(self, spec: WeightSpec) -> list[int]:
        """The axes of rows and columns, in that order; [] if the full moment is kept."""
        axes = self.weight_axes(spec)[-2:]
        long = all(spec.shape[axis] >= self.min_dim_size_to_factor for axis in axes)
        return axes if len(axes) == 2 and long else []


def rms(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """The root mean square over axes, which keep size 1."""
    return tf.sqrt(mean_of(tf.square(x), axes))


def mean_of(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """The mean over axes, which keep size 1.

    It is divided after the axes have size 1: a compiler merges equal constants. With a divisor of
    the shape [E] the split of experts would spread to tensors of this shape, such as a gate's.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    return tf.reduce_sum(x, axes, keepdims=True) / count
