"""Muon: updates of matrices whose singular values are all about equal."""

import dataclasses
import functools
import math
from typing import ClassVar

import tensorflow as tf

from lingvo_moe.config.fields import PositiveFloat, PositiveInt, Rate
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.adafactor import Adafactor, rms
from lingvo_moe.training.optimizer import zeros_like

# Coefficients of x -> (a + b·x² + c·x⁴)·x (Jordan et al. 2024). Five iterations move a singular
# value in [0.003, 1] to between 0.68 and 1.21.
_A, _B, _C = 3.4445, -4.7750, 2.0315
# A matrix with a smaller root mean square is scaled to less than 1 instead, down to 0. Squares of
# much smaller numbers would be 0 in float32, and the norm with them.
_SMALLEST_RMS = 1e-15
# With a side more than 1.5 times as long as the other, iterations together take fewer products than
# one by one. From the fourth on, rounding errors of bfloat16 products would make singular values
# much larger than 1, where others are nearly 0.
_LONG, _TOGETHER = 1.5, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Adafactor):
    """Muon for matrices (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982), else Adafactor.

    The change of a matrix of size R x C is the moving mean of its gradients with all singular
    values set to about 1. So its root mean square is at most about 1 / √max(R, C). It is scaled to
    matrix_factor · rate · max(RMS(weight), min_scale). So one learning rate serves both rules.
    Experts and the layers of a scan are independent matrices, as for Adafactor. A matrix without a
    gradient, such as an expert without tokens, does not change, but for weight_decay.

    Adafactor updates vectors, matrices with a side shorter than min_dim_size_to_factor, and weights
    with one of the `adafactor_dims`. `beta1`, `beta2`, `beta2_exponent` and `clip_threshold` are
    only for these weights.

    Slots: `mean` of a matrix, of its shape; those of Adafactor for other weights.

    Attributes:
        momentum: decay of the moving mean; as in Nesterov's method, one more step of the mean is
            used.
        matrix_factor: the root mean square of a change, relative to that of Adafactor with a
            clip_threshold of 1.
        iterations: number of Newton-Schulz iterations. Three leave singular values below 0.017
            smaller than 0.68, if the norm is 1; five leave those below 0.0015.
        adafactor_dims: letters of dimensions whose weights are updated by Adafactor: the vocabulary
            and the gates.
    """

    momentum: Rate = 0.95
    matrix_factor: PositiveFloat = 0.5
    iterations: PositiveInt = 5
    adafactor_dims: str = "Ve"

    takes_stacks: ClassVar[bool] = True

    def weight_slots(self, spec):
        if self._is_matrix(spec):
            return NestedMap(mean=zeros_like(spec))
        return super().weight_slots(spec)

    def update_weight(self, weight, slots, grad, spec, rate, count):
        if not self._is_matrix(spec):
            return super().update_weight(weight, slots, grad, spec, rate, count)
        mean = self.momentum * slots.mean + (1.0 - self.momentum) * grad
        ahead = self.momentum * mean + (1.0 - self.momentum) * grad
        axes = self.weight_axes(spec)
        longest = max(spec.shape[axis] for axis in axes)
        size = self.matrix_factor * rate * tf.maximum(rms(weight, axes), self.min_scale)
        change = size * longest**0.5 * orthogonalize(ahead, self.iterations)
        # The result does not depend on the size of the mean. Without this an expert without tokens
        # would go on in its last direction, and would grow.
        has_grad = tf.reduce_any(tf.not_equal(grad, 0.0), axes, keepdims=True)
        return tf.where(has_grad, change, tf.zeros_like(change)), NestedMap(mean=mean)

    def flops(self, spec):
        if not self._is_matrix(spec):
            return 0.0
        *others, rows, columns = spec.shape
        short, long = sorted((rows, columns))
        together = _together(rows, columns)
        groups = [
            min(together, self.iterations - done) for done in range(0, self.iterations, together)
        ]
        # As in `orthogonalize`: x·xᵀ and the product with x; the others are of the short side.
        products = [4 * short**2 * long + 2 * short**3 * (4 * count - 3) for count in groups]
        return math.prod(others) * sum(products)

    def _is_matrix(self, spec) -> bool:
        """Whether Muon updates the weight: its last two dimensions are one matrix."""
        count = len(spec.shape)
        last = self.weight_axes(spec) == self.factored_axes(spec) == [count - 2, count - 1]
        return last and not set(self.adafactor_dims) & set(spec.dims)


def orthogonalize(matrices: tf.Tensor, iterations: int) -> tf.Tensor:
    """Moves the singular values of matrices towards 1, by Newton-Schulz iterations.

    An iteration is x -> p(x·xᵀ)·x. Polynomials of one matrix commute. So, if a side is long, three
    iterations are computed from the same x·xᵀ, and the product of their polynomials multiplies x.

    Args:
        matrices: [..., R, C].
        iterations: number of iterations.

    Returns [..., R, C]; a zero matrix stays zero.
    """
    rows, columns = matrices.shape[-2:]
    is_high, short = rows > columns, min(rows, columns)
    norms = tf.sqrt(tf.reduce_sum(tf.square(matrices), [-2, -1], keepdims=True))
    x = matrices / tf.maximum(norms, _SMALLEST_RMS * (rows * columns) ** 0.5)
    together = _together(rows, columns)
    for done in range(0, iterations, together):
        inner = tf.matmul(x, x, transpose_a=is_high, transpose_b=not is_high)
        factors: list[tf.Tensor] = []
        for _ in range(min(together, iterations - done)):
            if factors:
                inner = tf.matmul(inner, tf.matmul(factors[-1], factors[-1]))
            square = tf.matmul(inner, inner)
            factors.append(_A * tf.eye(short) + _B * inner + _C * square)
        product = functools.reduce(tf.matmul, factors)
        x = tf.matmul(x, product) if is_high else tf.matmul(product, x)
    return x


def _together(rows, columns):
    """The number of iterations that are computed from one x·xᵀ."""
    return _TOGETHER if max(rows, columns) > _LONG * min(rows, columns) else 1
