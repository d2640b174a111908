"""A gating of your own, and a model that uses it: one file, nothing in the package is edited.

lingvo-moe-train --import=examples/own_gating.py --model=own_gating.Tiny --data=data --logdir=mine
lingvo-moe-translate --logdir=mine --to=en 'a sentence'     # the logdir stores the file's name
"""

import dataclasses

import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.moe.gatings.base import NOTHING, Gating
from lingvo_moe.moe.gatings.queues import route_choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Gating):
    """In training each token goes to an expert drawn by its gates, in evaluation to its best."""

    temperature: float = 1.0

    @property
    def choices_per_token(self):
        return 1

    def route(self, logits, mask, capacity, context, extras=NOTHING):
        gates = scores = tf.nn.softmax(logits)  # [G, S, E]
        if context.training:
            draw = context.uniform(tf.shape(logits), low=1e-20)
            scores = logits - self.temperature * tf.math.log(-tf.math.log(draw))  # Gumbel noise
        expert = tf.argmax(scores, axis=-1, output_type=tf.int32)[..., None]  # [G, S, 1]
        return route_choices(gates, expert, tf.gather(gates, expert, batch_dims=2), mask, capacity)


@lm.register
class Tiny:
    """tiny.MoE with experts that are drawn at random in training."""

    def params(self):
        return lm.evolve(lm.params("tiny.MoE"), "model.moe.gating", Sampled(temperature=0.5))
