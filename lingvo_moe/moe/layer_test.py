import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.vexperts import VExperts
from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.nn.layer import EVALUATION, Context, count_weights, init_theta
from lingvo_moe.testing.published_moe import Published
from lingvo_moe.testing.tokens import tokens_of

MODEL, HIDDEN, EXPERTS = 8, 12, 4
TRAINING = Context(tf.constant([5, 6]))
UNLIMITED = MoEParams(
    num_experts=EXPERTS,
    gating=TopK(k=2),
    training=Gather(capacity_factor=None),
)
LIMITED = Gather(capacity_factor=1.0)


def layer(params=UNLIMITED, **changes):
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=dataclasses.replace(params, **changes))


def random_inputs(*shape, seed=0):
    inputs = np.random.default_rng(seed).normal(size=[*shape, MODEL])
    return tf.constant(inputs, tf.float32), tf.ones(shape, tf.bool)


@pytest.mark.parametrize("dispatch", [Einsum, Gather])
def test_equals_the_published_algorithms_where_queues_overflow(dispatch):
    ours = layer(training=dispatch(capacity_factor=1.0, groups=2))
    theta = init_theta(ours.weights(), 0)
    inputs, mask = random_inputs(2, 8)
    found = []
    for moe in (ours, Published(EXPERTS, capacity=2)):
        with tf.GradientTape() as tape:
            tape.watch([inputs, theta])
            output = moe.fprop(theta, inputs, tokens_of(mask), TRAINING)
            objective = tf.reduce_sum(output.outputs**2) + output.loss
        gradients = tape.gradient(objective, [inputs, theta])
        found.append(tf.nest.flatten([output.outputs, output.loss, gradients]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_dropped_tokens_and_padding_give_zero():
    # Eight equal tokens choose the same two experts; C = ceil(1 · 8 / 4) = 2, so 2 · 6 of the 16
    # choices are dropped.
    theta = init_theta(layer().weights(), 0)
    inputs = tf.tile(random_inputs(1, 1)[0], [1, 8, 1])
    output = layer(training=LIMITED).fprop(
        theta, inputs, tokens_of(tf.ones([1, 8], tf.bool)), TRAINING
    )
    kept = np.abs(output.outputs[0]).max(axis=1) > 0
    np.testing.assert_array_equal(kept, [True] * 2 + [False] * 6)
    np.testing.assert_allclose(output.stats.drop_rate, 0.75)
    # Padding in front takes no place, so the next two tokens fit.
    mask = tf.constant([[False, False] + [True] * 6])
    output = layer(training=LIMITED).fprop(theta, inputs, tokens_of(mask), TRAINING)
    kept = np.abs(output.outputs[0]).max(axis=1) > 0
    np.testing.assert_array_equal(kept, [False] * 2 + [True] * 2 + [False] * 4)


def test_groups_share_no_capacity():
    theta = init_theta(layer().weights(), 0)
    inputs, mask = random_inputs(2, 8)
    two = layer(training=Gather(capacity_factor=0.5, groups=2))
    together = two.fprop(theta, inputs, tokens_of(mask), TRAINING).outputs
    one = layer(training=Gather(capacity_factor=0.5))
    for row in range(2):
        alone = one.fprop(theta, inputs[row : row + 1], tokens_of(mask[:1]), TRAINING).outputs
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6)


def test_evaluation_is_independent_of_batch_mates():
    theta = init_theta(layer().weights(), 0)
    lopsided = MoEParams(num_experts=EXPERTS, training=Gather(groups=3, capacity_factor=0.25))
    inputs, _ = random_inputs(5, 7)
    mask = tf.sequence_mask([7, 3, 1, 5, 7], 7)
    together = layer(lopsided).fprop(theta, inputs, tokens_of(mask), EVALUATION).outputs
    for row, length in enumerate([7, 3, 1, 5, 7]):
        alone = inputs[row : row + 1, :length]
        outputs = layer(lopsided).fprop(
            theta, alone, tokens_of(tf.ones([1, length], tf.bool)), EVALUATION
        )
        np.testing.assert_allclose(together[row, :length], outputs.outputs[0], atol=1e-5)
        assert not np.any(together[row, length:])


def test_evaluation_capacity_drops_when_asked():
    theta = init_theta(layer().weights(), 0)
    inputs = tf.tile(random_inputs(1, 1)[0], [1, 8, 1])
    limited = layer(evaluation=LIMITED)
    output = limited.fprop(theta, inputs, tokens_of(tf.ones([1, 8], tf.bool)), EVALUATION)
    np.testing.assert_allclose(output.stats.drop_rate, 0.75)


def test_the_gate_learns_from_outputs_and_from_the_balance_loss():
    theta = init_theta(layer().weights(), 0)
    inputs, mask = random_inputs(2, 8)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(theta.gate)
        output = layer().fprop(theta, inputs, tokens_of(mask), TRAINING)
        total = tf.reduce_sum(output.outputs)
    assert np.abs(tape.gradient(total, theta.gate)).max() > 1e-3
    assert np.abs(tape.gradient(output.stats.aux_loss, theta.gate)).max() > 1e-3


def test_weights_are_counted_and_named():
    weights = layer().weights()
    assert count_weights(weights) == MODEL * EXPERTS + EXPERTS * 2 * MODEL * HIDDEN
    dims = {path: spec.dims for path, spec in weights.flatten()}
    assert dims == {"gate": "Me", "experts/wi": "EMH", "experts/wo": "EHM"}


@pytest.mark.parametrize("factor", [None, 4.0])
@pytest.mark.parametrize("is_static", [True, False])
def test_evaluation_has_no_more_groups_than_divide_the_tokens(factor, is_static):
    """A step of decoding may have 3 tokens."""
    inputs, mask = random_inputs(3, 1)
    theta = init_theta(layer().weights(), 0)

    def outputs(inputs, mask, **options):
        return layer(**options).fprop(theta, inputs, tokens_of(mask), EVALUATION)

    shape = inputs.shape if is_static else [None, None, MODEL]
    signature = [tf.TensorSpec(shape), tf.TensorSpec(shape[:2], tf.bool)]
    options = {"evaluation": Gather(groups=8, capacity_factor=factor)}
    traced = tf.function(
        lambda *x: outputs(*x, **options).outputs, input_signature=signature, autograph=False
    )
    expected = outputs(inputs, mask).outputs
    np.testing.assert_allclose(traced(inputs, mask), expected, atol=1e-6)


def test_evaluation_drops_nothing_where_the_shape_is_not_static():
    theta = init_theta(layer().weights(), 0)

    @tf.function(input_signature=[tf.TensorSpec([None, None, MODEL])], autograph=False)
    def evaluate(inputs):
        mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        limited = layer(evaluation=LIMITED)
        return limited.fprop(theta, inputs, tokens_of(mask), EVALUATION).stats.drop_rate

    assert evaluate(tf.tile(random_inputs(1, 1)[0], [1, 8, 1])) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "num_experts must be >= 1, got 0"),
        ({"every_n": 0}, "every_n must be >= 1, got 0"),
        ({"evaluation": VExperts(devices=2, slots_per_device=2)}, "AnyShape, got VExperts"),
    ],
)
def test_bad_params(change, message):
    with pytest.raises(ValueError, match=message):
        MoEParams(**{"num_experts": 4, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 0}, "groups must be >= 1, got 0"),
        ({"capacity_factor": 0.0}, "capacity_factor must be > 0 or None, got 0.0"),
    ],
)
def test_bad_params_of_a_policy(change, message):
    with pytest.raises(ValueError, match=message):
        Gather(**change)
