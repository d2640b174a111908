"""Inputs, routings and gradients for dispatchers.  M model."""

import numpy as np
import tensorflow as tf

from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.nn.layer import Context
from lingvo_moe.nn.nested_map import NestedMap

MODEL = 5
TRAINING = Context(tf.constant([5, 6]))


def random_inputs(*shape, seed=1):
    """float32 [*shape, M]."""
    return tf.constant(np.random.default_rng(seed).normal(size=[*shape, MODEL]), tf.float32)


def routing_of(expert, dispatched):
    """A Routing whose positions are zero, because Dropless must not use them."""
    weight = np.random.default_rng(3).uniform(0.1, 1.0, expert.shape)
    return Routing(
        tf.constant(expert, tf.int32),
        tf.zeros(expert.shape, tf.int32),
        tf.constant(np.where(dispatched, weight, 0.0), tf.float32),
        tf.constant(dispatched),
        tf.zeros(expert.shape[:2]),
        tf.zeros(expert.shape[:2]),
        tf.constant(0.0),
        NestedMap(),
    )


def with_gradients(run, inputs, routing, experts):
    """The outputs of a function and their gradients: inputs, weights of choices, experts."""
    sources = [inputs, routing.weight, *experts.values()]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = run()
        total = tf.reduce_sum(tf.sin(outputs))
    none = tf.UnconnectedGradients.ZERO
    return [outputs, *tape.gradient(total, sources, unconnected_gradients=none)]
