"""MoE layers with each of their options, against loops and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.activation import GEGLU
from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.moe.gatings.balance_loss import ByGroup
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.moe.router import ByToken
from lingvo_moe.moe.shared import AlwaysOn, Gated
from lingvo_moe.nn.layer import EVALUATION, Context, count_weights, init_theta
from lingvo_moe.testing.tokens import tokens_of

MODEL, HIDDEN, EXPERTS = 8, 12, 4
TRAINING = Context(tf.constant([5, 6]))
UNLIMITED = Gather(capacity_factor=None)
DROPPING = ExpertParams(dropout_rate=0.4)
BOTH = pytest.mark.parametrize("context", [TRAINING, EVALUATION], ids=["training", "evaluation"])


def layer(**changes):
    params = {"num_experts": EXPERTS, "gating": TopK(k=2)} | changes
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=MoEParams(**params))


def random_batch(rows=4, length=8):
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.normal(size=[rows, length, MODEL]), tf.float32)
    return inputs, tf.sequence_mask([length, 3, length - 1, length][:rows], length)


def run(moe, context, theta=None, batch=None):
    inputs, mask = batch or random_batch()
    return moe.fprop(theta or init_theta(moe.weights(), 0), inputs, tokens_of(mask), context)


def one_token(theta, expert, token):
    """Reference: relu(x·wi)·wo of one expert on one token."""
    return np.maximum(token @ theta.wi[expert].numpy(), 0) @ theta.wo[expert].numpy()


def test_the_loss_is_the_weighted_sum():
    result = run(
        layer(
            gating=Top2(balance=ByGroup(weight=0.5)),
            router=ByToken(z_loss_weight=0.25),
            shared=Gated(loss_weight=2.0),
        ),
        TRAINING,
    )
    stats = result.stats
    expected = 0.5 * stats.aux_loss + 0.25 * stats.z_loss + 2.0 * stats.shared_gate_loss
    np.testing.assert_allclose(result.loss, expected, rtol=1e-6)
    assert min(stats.aux_loss, stats.z_loss, stats.shared_gate_loss) > 0.01
    plain = run(layer(), TRAINING)
    np.testing.assert_allclose(plain.loss, 0.01 * plain.stats.aux_loss, rtol=1e-6)


def test_statistics_of_a_gate_of_zeros_by_hand():
    # Ties go to the lowest experts, so all tokens choose experts 0 and 1.
    moe = layer()
    theta = init_theta(moe.weights(), 0)
    theta.gate = tf.zeros_like(theta.gate)
    stats = run(moe, EVALUATION, theta).stats
    np.testing.assert_array_equal(stats.choices > 0, [True, True, False, False])
    np.testing.assert_allclose(stats.importance, [0.25] * 4)
    np.testing.assert_allclose(stats.entropy, np.log(4), rtol=1e-6)
    inputs, _ = random_batch()
    padding = moe.fprop(theta, inputs, tokens_of(tf.zeros([4, 8], tf.bool)), EVALUATION)
    np.testing.assert_array_equal(padding.stats.choices, [0] * 4)
    assert all(np.all(np.isfinite(value)) for _, value in padding.stats.flatten())


def test_jitter_moves_the_router_and_not_the_experts():
    # One expert: whatever the router reads, its weight is 1.
    one = {"num_experts": 1, "gating": Top2()}
    theta = init_theta(layer(**one).weights(), 0)
    calm = run(layer(**one), TRAINING, theta)
    jittered = run(layer(**one, router=ByToken(jitter=0.5)), TRAINING, theta)
    np.testing.assert_array_equal(jittered.outputs, calm.outputs)
    assert jittered.stats.z_loss != calm.stats.z_loss
    assert np.abs(
        run(layer(router=ByToken(jitter=0.5)), TRAINING).outputs - run(layer(), TRAINING)[0]
    ).max()


@pytest.mark.parametrize("dispatcher", [Einsum(capacity_factor=None), UNLIMITED, Ragged()], ids=str)
def test_masked_outputs_against_a_loop(dispatcher):
    moe = layer(expert=ExpertParams(mask_rate=0.4), training=dispatcher)
    theta, (inputs, mask) = init_theta(moe.weights(), 0), random_batch()
    trained = run(moe, TRAINING, theta).outputs.numpy()
    evaluated = run(moe, EVALUATION, theta).outputs.numpy()
    kinds = []
    for b, t in np.argwhere(mask):
        token = inputs[b, t].numpy()
        scores = token @ theta.gate.numpy()
        first, second = np.argsort(-scores)[:2]
        weights = np.exp(scores[[first, second]])
        weights /= sum(weights)
        rows = [
            w * one_token(theta.experts, e, token)
            for w, e in zip(weights, (first, second), strict=True)
        ]
        np.testing.assert_allclose(evaluated[b, t], 0.6 * sum(rows), atol=1e-5)
        # In training each row is there in full or not at all.
        choices = {(i, j): i * rows[0] + j * rows[1] for i in (0, 1) for j in (0, 1)}
        kinds += [k for k, v in choices.items() if np.allclose(trained[b, t], v, atol=1e-5)]
    assert len(kinds) == np.sum(mask)
    assert len(set(kinds)) == 4
    kept = np.mean(kinds)
    assert abs(kept - 0.6) < 4 * (0.24 / np.size(kinds)) ** 0.5


def test_expert_dropout_is_off_in_evaluation_and_alike_in_dispatchers():
    def outputs(context, **changes):
        return run(layer(**changes), context).outputs

    np.testing.assert_array_equal(outputs(EVALUATION, expert=DROPPING), outputs(EVALUATION))
    einsum = outputs(TRAINING, expert=DROPPING, training=Einsum(capacity_factor=1.0))
    gather = outputs(TRAINING, expert=DROPPING, training=Gather(capacity_factor=1.0))
    np.testing.assert_allclose(einsum, gather, atol=1e-5)
    assert np.abs(gather - outputs(TRAINING, training=Gather(capacity_factor=1.0))).max() > 0.1


@BOTH
def test_a_shared_expert_against_a_loop(context):
    moe = layer(shared=Gated(), training=UNLIMITED)
    theta, (inputs, mask) = init_theta(moe.weights(), 0), random_batch()
    result = run(moe, context, theta)
    routed = run(layer(training=UNLIMITED), context, theta).outputs.numpy()
    gates = []
    for b, t in np.argwhere(mask):
        token = inputs[b, t].numpy()
        g = 1 / (1 + np.exp(-token @ theta.shared_gate.numpy()))
        shared = np.maximum(token @ theta.shared.wi.numpy(), 0) @ theta.shared.wo.numpy()
        expected = (1 - g) * shared + g * routed[b, t]
        np.testing.assert_allclose(result.outputs[b, t], expected, atol=1e-5)
        gates.append(g)
    np.testing.assert_allclose(result.stats.shared_gate, np.mean(gates), rtol=1e-5)
    budget_loss = np.mean(np.abs(np.array(gates) - 0.8))
    np.testing.assert_allclose(result.stats.shared_gate_loss, budget_loss, rtol=1e-5)


@BOTH
def test_always_on_experts_are_added_for_every_token(context):
    """The twin without them, and relu(x·wi)·wo of twice an expert's hidden units."""
    moe = layer(shared=AlwaysOn(experts=2), training=UNLIMITED)
    theta, (inputs, _) = init_theta(moe.weights(), 0), random_batch()
    assert theta.shared.wi.shape == (MODEL, 2 * HIDDEN)
    routed = run(layer(training=UNLIMITED), context, theta).outputs
    shared = tf.nn.relu(inputs @ theta.shared.wi) @ theta.shared.wo
    np.testing.assert_allclose(run(moe, context, theta).outputs, routed + shared, atol=1e-5)


def test_shared_gate_dropout_leaves_the_shared_expert_alone():
    free = layer(shared=Gated(), training=UNLIMITED)
    dropping = layer(shared=Gated(dropout_rate=0.5), training=UNLIMITED)
    theta, (inputs, mask) = init_theta(free.weights(), 0), random_batch()
    plain, dropped = run(free, TRAINING, theta), run(dropping, TRAINING, theta)
    shared = free.shared.fprop(theta.shared, tf.reshape(inputs, [-1, MODEL]))
    only_shared = np.isclose(dropped.outputs, tf.reshape(shared, inputs.shape), atol=1e-5).all(-1)
    untouched = np.isclose(dropped.outputs, plain.outputs, atol=1e-5).all(-1)
    assert np.all((only_shared | untouched)[mask])
    assert 0.2 < only_shared[mask].mean() < 0.8
    np.testing.assert_array_equal(dropped.loss, plain.loss)
    np.testing.assert_array_equal(
        run(dropping, EVALUATION, theta).outputs, run(free, EVALUATION, theta).outputs
    )


def test_the_budget_loss_moves_the_gates_to_the_budget():
    moe = layer(shared=Gated(budget=1.0))
    theta = init_theta(moe.weights(), 0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(theta.shared_gate)
            stats = run(moe, TRAINING, theta).stats
        np.testing.assert_allclose(stats.shared_gate_loss, 1 - stats.shared_gate, rtol=1e-5)
        theta.shared_gate -= tape.gradient(stats.shared_gate_loss, theta.shared_gate)
    assert run(moe, TRAINING, theta).stats.shared_gate > stats.shared_gate


ALL = {
    "router": ByToken(jitter=0.05, z_loss_weight=0.01),
    "expert": ExpertParams(activation=GEGLU(), mask_rate=0.2, dropout_rate=0.1),
    "shared": Gated(dropout_rate=0.2, loss_weight=0.1),
}


@pytest.mark.parametrize("gating", [Top2(), Switch()], ids=str)
@pytest.mark.parametrize("num_groups", [1, 2])
def test_with_all_options_dispatchers_agree_and_every_weight_learns(gating, num_groups):
    results = []
    for dispatcher in (Einsum, Gather):
        moe = layer(**ALL, gating=gating, training=dispatcher(groups=num_groups))
        theta = init_theta(moe.weights(), 0)
        with tf.GradientTape() as tape:
            tape.watch(theta)
            output = run(moe, TRAINING, theta)
            total = tf.reduce_sum(tf.sin(output.outputs)) + output.loss
        gradients = dict(tape.gradient(total, theta).flatten())
        for name, gradient in gradients.items():
            assert np.abs(gradient).max() > 1e-4, name
        results.append({**gradients, "outputs": output.outputs})
    assert len(results[0]) == 1 + 3 + 3 + 2
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], atol=1e-5, err_msg=name)


def test_with_all_options_evaluation_is_independent_of_batch_mates():
    moe = layer(**ALL)
    theta, (inputs, mask) = init_theta(moe.weights(), 0), random_batch()
    together = run(moe, EVALUATION, theta).outputs
    for row, length in [(0, 8), (1, 3)]:
        alone = run(moe, EVALUATION, theta, (inputs[row : row + 1, :length], mask[:1, :length]))
        np.testing.assert_allclose(together[row, :length], alone.outputs[0], atol=1e-5)


def test_bfloat16_activations_stay_bfloat16():
    moe = layer(**ALL)
    theta = init_theta(moe.weights(), 0).map(lambda w: tf.cast(w, tf.bfloat16))
    inputs, mask = random_batch()
    for context in (TRAINING, EVALUATION):
        result = moe.fprop(theta, tf.cast(inputs, tf.bfloat16), tokens_of(mask), context)
        assert result.outputs.dtype == tf.bfloat16
        assert {value.dtype for _, value in result.stats.flatten()} == {tf.float32}
        assert result.loss.dtype == tf.float32


def test_weights_are_counted_and_named():
    weights = layer(shared=Gated(), expert=ExpertParams(activation=GEGLU())).weights()
    one = 3 * MODEL * HIDDEN
    assert count_weights(weights) == MODEL * EXPERTS + MODEL + (EXPERTS + 1) * one
    dims = {path: spec.dims for path, spec in weights.flatten() if not path.startswith("experts")}
    assert dims == {
        "gate": "Me",
        "shared/wg": "MH",
        "shared/wi": "MH",
        "shared/wo": "HM",
        "shared_gate": "M",
    }
    uncast = {path for path, spec in weights.flatten() if not spec.cast}
    assert uncast == {"gate", "shared_gate"}


def test_the_decoder_may_have_its_own_number_of_experts():
    assert MoEParams(num_experts=4).of_decoder().num_experts == 4
    assert MoEParams(num_experts=4, decoder_num_experts=2).of_decoder().num_experts == 2
