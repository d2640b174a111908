"""A task of one MoE layer, in the place of a TranslationTask."""

import collections
import contextlib
import dataclasses
from unittest import mock

import numpy as np
import tensorflow as tf

from lingvo_moe.moe.dispatch import AnyShape, Dispatcher
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import Constant
from lingvo_moe.training.step import LossOutput, TrainStep

ROWS, LENGTH, MODEL, EXPERTS = 8, 16, 6, 4


@dataclasses.dataclass(frozen=True)
class Regression:
    """One MoE layer that learns to give its inputs [rows, length, model_dim] back."""

    dispatcher: Dispatcher
    groups: int = 2
    num_experts: int = EXPERTS
    model_dim: int = MODEL
    hidden_dim: int = 8
    evaluation: AnyShape = Ragged()

    @property
    def layer(self):
        params = MoEParams(
            num_experts=self.num_experts,
            gating=TopK(k=2),
            training=dataclasses.replace(self.dispatcher, groups=self.groups),
            evaluation=self.evaluation,
        )
        return MoE(model_dim=self.model_dim, hidden_dim=self.hidden_dim, params=params)

    @property
    def rungs(self):
        return tuple(dataclasses.replace(self, dispatcher=one) for one in self.dispatcher.rungs)

    def for_xla(self, groups):
        return dataclasses.replace(self, evaluation=self.evaluation.for_xla(groups))

    def weights(self):
        return self.layer.weights()

    def in_use(self, theta):
        return theta

    def num_targets(self, batch):
        return tf.cast(tf.size(batch.inputs) // self.model_dim, tf.float32)

    def after_step(self, state, metrics):
        return state, metrics

    def loss(self, theta, batch, denominator, context):
        ones = tf.ones(tf.shape(batch.inputs)[:2], tf.int32)
        output = self.layer.fprop(theta, batch.inputs, Tokens(ones, ones), context)
        nll = tf.reduce_sum(tf.square(output.outputs - batch.inputs)) / denominator
        metrics = NestedMap(nll=nll, dropped=tf.reduce_sum(output.routing.dropped))
        if "lost" in output.stats:
            metrics.lost = output.stats.lost
        if "source_load" in output.stats:
            metrics.source_load = output.stats.source_load[None]
        return LossOutput(nll + output.loss, metrics, output.stats.get("rung"))

    def step(self, **changes):
        optimizer = AdamW(schedule=Constant(learning_rate=0.01, warmup_steps=1))
        return TrainStep(task=self, optimizer=optimizer, rungs=self.rungs, seed=5, **changes)


@contextlib.contextmanager
def counting_traces():
    """Yields a Counter: dispatcher -> how often a program with it was traced, so far.

    Python calls the loss only to trace a program, so its calls are counted.
    """
    traced: collections.Counter[Dispatcher] = collections.Counter()
    loss = Regression.loss

    def counted(task, *args):
        traced[task.dispatcher] += 1
        return loss(task, *args)

    with mock.patch.object(Regression, "loss", counted):
        yield traced


def batch(step, skew=0.0):
    """Random vectors; those of a skewed batch point one way, which one expert takes."""
    rng = np.random.default_rng(step)
    inputs = rng.normal(size=(ROWS, LENGTH, MODEL)) * (1 - skew) + skew
    return {"inputs": inputs.astype(np.float32)}


# The third batch is one vector over and over: two experts get all tokens, one the first choices.
BATCHES = [batch(0), batch(1), batch(2, skew=1.0), batch(3), batch(4, skew=0.7)]


def numbers(state):
    """The tensors of a state, without the current rung (see training.ladder)."""
    return {name: np.asarray(value) for name, value in state.items() if name != "ladder"}
