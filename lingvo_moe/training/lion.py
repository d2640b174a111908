"""Lion: every element changes by the learning rate times the sign of a moving mean."""

import dataclasses

import tensorflow as tf

from lingvo_moe.core.fields import Rate
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.training.optimizer import Optimizer, zeros_like


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """Chen et al. 2023 (arXiv 2302.06675).

    Slots: `mean`, of each weight's shape.

    Attributes:
        beta1: weight of the mean in the direction; the gradient has the weight 1 - beta1.
        beta2: decay of the mean.
    """

    beta1: Rate = 0.9
    beta2: Rate = 0.99

    def weight_slots(self, spec):
        return NestedMap(mean=zeros_like(spec))

    def update_weight(self, weight, slots, grad, spec, rate, count):
        direction = tf.sign(self.beta1 * slots.mean + (1.0 - self.beta1) * grad)
        mean = self.beta2 * slots.mean + (1.0 - self.beta2) * grad
        return rate * direction, NestedMap(mean=mean)
