"""Every gating in an MoE layer."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.gatings.balanced import Balanced
from lingvo_moe.moe.gatings.expert_choice import ExpertChoice
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.router import ByTask, ByTaskAndToken, ByToken
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.testing import slow_routing
from lingvo_moe.testing.tokens import tokens_of

MODEL, HIDDEN, EXPERTS = 8, 12, 4
TRAINING = Context(tf.constant([5, 6]))
TASKS = tf.constant([[0] * 8, [2] * 8, [1] * 5 + [2] * 3, [2] * 8])  # of random_batch
EXPERT_CHOICE = ExpertChoice(capacity_factor=64.0)  # only the policy's capacity limits it
ROUTERS = [ByToken(), ByTask(num_tasks=3), ByTaskAndToken(num_tasks=3)]
WEIGHTS_SUM_TO_ONE = [TopK(k=2), TopK(k=3)]
GATINGS = [
    *WEIGHTS_SUM_TO_ONE,
    Top2(),
    TopK(k=3, normalize=False),
    Switch(),
    EXPERT_CHOICE,
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
    for dispatcher in (Einsum, Gather):
        policy = dispatcher(capacity_factor=capacity_factor, groups=2)
        moe = layer(gating, training=policy)
        theta = init_theta(moe.weights(), 0)
        with tf.GradientTape() as tape:
            tape.watch((inputs, theta))
            output = moe.fprop(theta, inputs, tokens_of(mask, token_ids), TRAINING)
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


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@pytest.mark.parametrize("gating", WEIGHTS_SUM_TO_ONE, ids=str)
@pytest.mark.parametrize("context", [TRAINING, EVALUATION], ids=["training", "evaluation"])
def test_one_network_in_every_expert_is_that_network(router, gating, context):
    dense = FeedForward(model_dim=MODEL, hidden_dim=HIDDEN)
    dense_theta = init_theta(dense.weights(), 1)
    moe = layer(gating, router=router, training=Gather(capacity_factor=None))
    theta = init_theta(moe.weights(), 0)
    theta.experts = dense_theta.map(lambda w: tf.tile(w[None], [EXPERTS, 1, 1]))
    inputs, mask, token_ids = random_batch()
    expected = tf.reshape(dense.fprop(dense_theta, tf.reshape(inputs, [-1, MODEL])), inputs.shape)
    tokens = tokens_of(mask, token_ids, TASKS)
    outputs = moe.fprop(theta, inputs, tokens, context).outputs
    np.testing.assert_allclose(outputs, tf.where(mask[..., None], expected, 0.0), atol=1e-5)


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@pytest.mark.parametrize("gating", BATCH_INDEPENDENT, ids=str)
def test_a_token_is_evaluated_alike_alone_and_in_a_batch(router, gating):
    inputs, mask, token_ids = random_batch()
    moe = layer(gating, router=router)
    theta = init_theta(moe.weights(), 0)
    together = moe.fprop(theta, inputs, tokens_of(mask, token_ids, TASKS), EVALUATION).outputs
    for row, column in [(0, 0), (1, 2), (2, 6), (3, 7)]:
        here = slice(row, row + 1), slice(column, column + 1)
        token = tokens_of(mask[here], token_ids[here], TASKS[here])
        alone = moe.fprop(theta, inputs[here], token, EVALUATION).outputs
        np.testing.assert_allclose(together[here], alone, atol=1e-6)
        assert np.abs(alone).max() > 0.01


def test_expert_choice_is_the_one_that_depends_on_the_batch():
    assert {type(gating) for gating in set(GATINGS) - set(BATCH_INDEPENDENT)} == {ExpertChoice}


def test_expert_choice_evaluates_as_it_trains():
    inputs, mask, _ = random_batch()
    moe = layer(ExpertChoice(capacity_factor=1.0))
    theta = init_theta(moe.weights(), 0)
    output = moe.fprop(theta, inputs, tokens_of(mask), EVALUATION)
    trained = moe.fprop(
        theta, inputs, tokens_of(mask), TRAINING
    )  # the same factor, another dispatcher
    np.testing.assert_allclose(output.outputs, trained.outputs, atol=1e-5)


def top(k, normalize=False):
    """The slow twin of gatings by token: the group's {(token, expert): (position, weight)}."""

    def choose(logits, mask, capacity):
        best = {s: slow_routing.best(logits[s], k, normalize) for s in np.flatnonzero(mask)}
        choices = min(k, logits.shape[-1])
        return slow_routing.queue(best, choices, logits.shape[-1], capacity)[0]

    return choose


def experts_choose(logits, mask, capacity):
    return slow_routing.take(tf.nn.softmax(logits).numpy(), mask, capacity)


SLOW = {
    TopK(k=2): top(2, normalize=True),
    TopK(k=3): top(3, normalize=True),
    Switch(): top(1),
    EXPERT_CHOICE: experts_choose,
}


@pytest.mark.parametrize("router", ["by token", "by task"])
@pytest.mark.parametrize("gating", SLOW, ids=str)
@pytest.mark.parametrize("name", slow_routing.CASES)
def test_the_layer_equals_slow_loops(router, gating, name):
    """Scores, queues, experts and sums, one token after another; see slow_routing.CASES."""
    logits, mask, capacity = slow_routing.case(name)
    groups, tokens, experts = logits.shape
    if isinstance(gating, TopK) and gating.k > experts:
        gating = TopK(k=experts)
    # The gates of a single expert are all 1, but their last bit depends on the processor.
    if gating == EXPERT_CHOICE and (capacity is None or experts == 1):
        capacity = tokens
    rng = np.random.default_rng(7)
    if router == "by token":  # the identity for a gate: logits are inputs
        params, inputs, tasks, gate, name = {}, logits, None, np.eye(experts), "gate"
    else:  # sentences of three tokens; group 0's first logits for a table
        tasks = (np.arange(tokens) // 3 + np.arange(groups)[:, None]) % tokens
        gate, inputs, name = logits[0], rng.normal(size=logits.shape), "task_gate"
        params, logits = {"router": ByTask(num_tasks=tokens)}, gate[tasks]
        tasks = tf.constant(tasks, tf.int32)
    moe = MoE(
        model_dim=experts,
        hidden_dim=HIDDEN,
        params=MoEParams(
            num_experts=experts,
            gating=gating,
            training=Gather(
                groups=groups, capacity_factor=capacity and capacity * experts / tokens
            ),
            **params,
        ),
    )
    theta = init_theta(moe.weights(), 0)
    theta[name] = tf.constant(gate, tf.float32)
    output = moe.fprop(
        theta, tf.constant(inputs, tf.float32), tokens_of(tf.constant(mask), tasks=tasks), TRAINING
    )
    slow = SLOW.get(gating) or top(experts, normalize=True)
    wi, wo = theta.experts.wi.numpy(), theta.experts.wo.numpy()
    expected = np.zeros_like(inputs)
    for g in range(groups):
        room = capacity and min(capacity, tokens)
        for (s, e), (_, weight) in slow(logits[g], mask[g], room).items():
            expected[g, s] += weight * np.maximum(inputs[g, s] @ wi[e], 0.0) @ wo[e]
    np.testing.assert_allclose(output.outputs, expected, atol=2e-5)
    assert np.abs(expected).max() > 0.01


@pytest.mark.parametrize("gating", GATINGS, ids=str)
@pytest.mark.parametrize("num_experts", [4, 8])
def test_aux_loss_is_one_at_balance_and_e_at_collapse(gating, num_experts):
    mask = tf.ones([2, 4 * num_experts], tf.bool)
    even = tf.tile(3.0 * tf.eye(num_experts)[None], [2, 4, 1])
    collapsed = 100.0 * tf.one_hot(tf.cast(mask, tf.int32), num_experts)
    balanced_anyway = isinstance(gating, ExpertChoice | Balanced)
    for logits, loss in [(even, 1.0), (collapsed, 1.0 if balanced_anyway else num_experts)]:
        routing = gating.route(logits, mask, 8, TRAINING)
        np.testing.assert_allclose(routing.aux_loss, loss, atol=1e-6)


@pytest.mark.parametrize("gating", GATINGS, ids=str)
@pytest.mark.slow
def test_gradients_are_those_of_finite_differences(gating):
    # Logits half a unit apart and no two tokens alike: a small change keeps every order.
    rng = np.random.default_rng(3)
    apart = rng.permuted(np.tile(np.arange(3) * 0.5, (2, 5, 1)), axis=-1)
    logits = tf.constant(apart + 0.2 * rng.random([2, 5, 1]) * np.arange(3), tf.float32)
    mask = tf.constant([[True, True, False, True, True], [True, False, True, True, True]])
    factors = tf.constant(rng.normal(size=[2, 5, 3]), tf.float32)

    def objective(logits):
        routing = gating.route(logits, mask, 2, TRAINING)
        place = tf.one_hot(routing.expert, 3)
        return tf.einsum("GSK,GSKE,GSE->", routing.weight, place, factors) + routing.aux_loss

    symbolic, numeric = tf.test.compute_gradient(objective, [logits], delta=1e-2)
    np.testing.assert_allclose(symbolic[0], numeric[0], atol=5e-4)
    assert np.abs(symbolic[0]).max() > 0.01
