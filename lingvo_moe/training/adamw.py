"""AdamW: moving means of the gradient and of its square, and decoupled weight decay."""

import dataclasses

import tensorflow as tf

from lingvo_moe.config.fields import PositiveFloat, Rate
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.optimizer import Optimizer, zeros_like


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Loshchilov & Hutter 2019 (arXiv 1711.05101), both means corrected for starting at zero.

    Slots: `mean` and `square` of each weight's shape.

    Attributes:
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of their squares.
        epsilon: added to the root of the mean square.
    """

    beta1: Rate = 0.9
    beta2: Rate = 0.999
    epsilon: PositiveFloat = 1e-8

    def weight_slots(self, spec):
        zeros = zeros_like(spec)
        return NestedMap(mean=zeros, square=zeros)

    def update_weight(self, weight, slots, grad, spec, rate, count):
        mean = self.beta1 * slots.mean + (1.0 - self.beta1) * grad
        square = self.beta2 * slots.square + (1.0 - self.beta2) * tf.square(grad)
        root = tf.sqrt(square / (1.0 - self.beta2**count))
        change = rate * mean / (1.0 - self.beta1**count) / (root + self.epsilon)
        return change, NestedMap(mean=mean, square=square)
