"""Every gating in an MoE layer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, Context, init_theta
from lingvo_moe.gatings.balanced import Balanced
from lingvo_moe.gatings.expert_choice import ExpertChoice
from lingvo_moe.gatings.hashed import Hash
from lingvo_moe.gatings.switch import Switch
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.dispatch import Einsum, Gather
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.layers.moe import MoE, MoEParams

MODEL, HIDDEN, EXPERTS = 8, 12, 4
TRAINING = Context(tf.constant([5, 6]))
WEIGHTS_SUM_TO_ONE = [
    Top2(second_expert="always"),
    TopK(k=2),
    TopK(k=3),
    TopK(k=1),
    Hash(),
]
GATINGS = [
    *WEIGHTS_SUM_TO_ONE,
    Top2(second_expert="random"),
    TopK(k=3, normalize=False),
    Switch(),
    ExpertChoice(),
    Balanced(),
]
BATCH_INDEPENDENT = [gating for gating in GATINGS if gating.batch_independent]


def layer(gating, **changes):
    params = MoEParams(num_experts=EXPERTS, gating=gating, **changes)
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=params)


def random_batch():
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.normal(size=[4, 8, MODEL]), tf.float32)
    mask = tf.sequence_mask([8, 3, 7, 8], 8)
    return inputs, mask, tf.constant(rng.integers(0, 50, [4, 8]), tf.int32)


@pytest.mark.parametrize("capacity_factor", [0.5, 2.0])
@pytest.mark.parametrize("gating", GATINGS, ids=str)
def test_dispatchers_agree_in_training(gating, capacity_factor):
    inputs, mask, token_ids = random_batch()
    results = []
    for dispatcher in (Einsum(), Gather()):
        moe = layer(gating, dispatcher=dispatcher, capacity_factor=capacity_factor, num_groups=2)
        theta = init_theta(moe.weights(), 0)
        with tf.GradientTape() as tape:
            tape.watch((inputs, theta))
            output = moe.fprop(theta, inputs, mask, TRAINING, token_ids)
            total = tf.reduce_sum(tf.sin(output.outputs)) + output.stats.aux_loss
        # No gradient may be missing: the training step updates every weight.
        results.append(
            (output.outputs, output.stats.aux_loss, *tape.gradient(total, (inputs, theta)))
        )
    flat = [tf.nest.flatten(result, expand_composites=True) for result in results]
    assert len(flat[0]) == 6
    for einsum, gather in zip(*flat, strict=True):
        np.testing.assert_allclose(einsum, gather, atol=1e-5)
    assert np.abs(flat[0][0]).max() > 0.01


@pytest.mark.parametrize("gating", WEIGHTS_SUM_TO_ONE, ids=str)
@pytest.mark.parametrize("context", [TRAINING, EVALUATION])
def test_one_network_in_every_expert_is_that_network(gating, context):
    dense = FeedForward(model_dim=MODEL, hidden_dim=HIDDEN)
    dense_theta = init_theta(dense.weights(), 1)
    moe = layer(gating, capacity_factor=None)
    theta = init_theta(moe.weights(), 0)
    theta.experts = dense_theta.map(lambda w: tf.tile(w[None], [EXPERTS, 1, 1]))
    inputs, mask, token_ids = random_batch()
    expected = tf.reshape(dense.fprop(dense_theta, tf.reshape(inputs, [-1, MODEL])), inputs.shape)
    outputs = moe.fprop(theta, inputs, mask, context, token_ids).outputs
    np.testing.assert_allclose(outputs, tf.where(mask[..., None], expected, 0.0), atol=1e-5)


@pytest.mark.parametrize("gating", BATCH_INDEPENDENT, ids=str)
def test_a_token_is_evaluated_alike_alone_and_in_a_batch(gating):
    inputs, mask, token_ids = random_batch()
    moe = layer(gating)
    theta = init_theta(moe.weights(), 0)
    together = moe.fprop(theta, inputs, mask, EVALUATION, token_ids).outputs
    for row, column in [(0, 0), (1, 2), (2, 6), (3, 7)]:
        here = slice(row, row + 1), slice(column, column + 1)
        alone = moe.fprop(theta, inputs[here], mask[here], EVALUATION, token_ids[here]).outputs
        np.testing.assert_allclose(together[here], alone, atol=1e-6)
        assert np.abs(alone).max() > 0.01


def test_expert_choice_is_the_one_that_depends_on_the_batch():
    assert {type(gating) for gating in set(GATINGS) - set(BATCH_INDEPENDENT)} == {ExpertChoice}


def test_expert_choice_evaluates_with_a_capacity_and_says_so_without():
    inputs, mask, _ = random_batch()
    moe = layer(ExpertChoice(), eval_capacity_factor=2.0)
    theta = init_theta(moe.weights(), 0)
    output = moe.fprop(theta, inputs, mask, EVALUATION)
    trained = moe.fprop(theta, inputs, mask, TRAINING)  # the same factor, another dispatcher
    np.testing.assert_allclose(output.outputs, trained.outputs, atol=1e-5)
    params = dataclasses.replace(moe.params, eval_capacity_factor=None)
    with pytest.raises(ValueError, match=r"ExpertChoice got capacity None"):
        dataclasses.replace(moe, params=params).fprop(theta, inputs, mask, EVALUATION)
