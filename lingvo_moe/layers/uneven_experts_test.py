"""Experts of different sizes.

G groups, S tokens, K choices, E experts, M model, H hidden units of an expert of size 1.
"""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.core.layer import EVALUATION, count_weights, init_theta
from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.gatings.expert_choice import ExpertChoice
from lingvo_moe.gatings.top_2 import Top2
from lingvo_moe.gatings.top_k import TopK
from lingvo_moe.layers.activation import ReLU, SwiGLU
from lingvo_moe.layers.dispatch import Einsum, Gather, Ragged
from lingvo_moe.layers.dropless import Dropless, in_blocks
from lingvo_moe.layers.experts import HeldExperts
from lingvo_moe.layers.feed_forward import FeedForward
from lingvo_moe.layers.moe import MoE, MoEParams
from lingvo_moe.sharding.annotations import parse_mesh, use_mesh
from lingvo_moe.testing.routings import (
    TRAINING,
    random_inputs,
    routing_of,
    with_gradients,
)
from lingvo_moe.testing.tokens import tokens_of

SIZES = (2, 1, 4, 1, 3)
GROUPS, TOKENS, MODEL, HIDDEN, EXPERTS = 2, 6, 5, 3, len(SIZES)
UNEVEN = Dropless(expert_sizes=SIZES, block_size=4)
EVALUATORS = [Ragged(), Gather(), Einsum(), Dropless()]


def experts_of(sizes=SIZES, **changes):
    layer = FeedForward(model_dim=MODEL, hidden_dim=HIDDEN, num_experts=len(sizes), **changes)
    return layer, init_theta(Dropless(expert_sizes=sizes).holding.weights(layer.weights()), 0)


def moe_of(**changes):
    params = {
        "num_experts": EXPERTS,
        "gating": Top2(second_expert="always"),
        "dispatcher": UNEVEN,
        "capacity_factor": None,
    }
    return MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=MoEParams(**(params | changes)))


def of_expert(theta, expert):
    """wi, wo and, if gated, wg of a network of size · H hidden units."""
    blocks = slice(sum(SIZES[:expert]), sum(SIZES[: expert + 1]))
    into = {
        name: tf.concat(tf.unstack(theta[name][blocks]), -1) for name in theta if name[:2] != "wo"
    }
    outputs = {"wo": tf.concat(tf.unstack(theta.wo[blocks]), 0)}
    if "wo_bias" in theta:
        outputs["wo_bias"] = tf.reduce_sum(theta.wo_bias[blocks], 0)
    return into | outputs


def token_by_token(inputs, routing, theta):
    """Σ_k weight · expert_k(token), a loop over tokens and choices, with ordinary products."""
    experts = [of_expert(theta, e) for e in range(EXPERTS)]
    outputs = []
    for g, s in np.ndindex(*inputs.shape[:2]):
        output, x = tf.zeros([1, MODEL]), inputs[g, s][None]
        for k in np.flatnonzero(routing.dispatched[g, s]):
            weights = experts[int(routing.expert[g, s, k])]
            hidden = x @ weights["wi"] + weights.get("wi_bias", 0.0)
            if "wg" in weights:
                hidden *= tf.nn.silu(x @ weights["wg"])
            else:
                hidden = tf.nn.relu(hidden)
            output += routing.weight[g, s, k] * (
                hidden @ weights["wo"] + weights.get("wo_bias", 0.0)
            )
        outputs.append(output)
    return tf.reshape(tf.stack(outputs), inputs.shape)


def routings():
    """(activation, routing)."""
    rng = np.random.default_rng(0)
    shape = (GROUPS, TOKENS)
    everyone, padded = np.ones(shape, bool), np.broadcast_to(np.arange(TOKENS) < 4, shape)
    for choices in (1, 2, 4):
        drawn = rng.permuted(np.tile(range(EXPERTS), (*shape, 1)), axis=2)[..., :choices]
        some = rng.uniform(size=drawn.shape) < 0.5
        for name, expert, dispatched in [
            ("anything", drawn, everyone[..., None]),
            ("padding", drawn, padded[..., None]),
            ("choices not taken", drawn, some),
            ("all to the largest and its neighbours", np.arange(choices) + 2, everyone[..., None]),
            ("all to the last", EXPERTS - choices + np.arange(choices), everyone[..., None]),
            ("nobody", drawn, ~everyone[..., None]),
        ]:
            expert = np.broadcast_to(expert % EXPERTS, drawn.shape)
            routing = routing_of(expert, np.broadcast_to(dispatched, drawn.shape))
            activation = SwiGLU() if choices == 2 else ReLU()
            yield pytest.param(activation, routing, id=f"k={choices}, {name}")


@pytest.mark.parametrize(("activation", "routing"), routings())
def test_a_loop_over_tokens_gives_the_same(activation, routing):
    layer, theta = experts_of(activation=activation, use_bias=activation == ReLU())
    theta = theta.map(lambda w: w if w.shape.rank == 3 else w + random_inputs(*w.shape)[..., 0])
    inputs = random_inputs(GROUPS, TOKENS)
    expected = with_gradients(
        lambda: token_by_token(inputs, routing, theta.experts), inputs, routing, theta.experts
    )
    for block_size in (2, 5):
        dispatcher = dataclasses.replace(UNEVEN, block_size=block_size)
        stats = []

        def run(dispatcher=dispatcher, stats=stats):
            outputs, found = dispatcher.dispatch(inputs, routing, None, HeldExperts(layer, theta))
            stats.append(found)
            return outputs

        got = with_gradients(run, inputs, routing, theta.experts)
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=f"block_size {block_size}")
        assert stats[0].lost == 0


def test_blocks_by_hand():
    # Experts of sizes 2, 1 and 2. Choices 0 and 3 go to expert 2, choice 1 to expert 0, choice 2
    # nowhere. Row blocks of 2: [1, -] meets columns 0 and 1, [0, 3] meets columns 3 and 4.
    routing = routing_of(np.array([[[2, 0], [1, 2]]]), np.array([[[True, True], [False, True]]]))
    blocks = in_blocks(routing, (2, 1, 2), 2)
    np.testing.assert_array_equal(blocks.choice, [1, 4, 0, 3, 4, 4, 4, 4, 4, 4])
    np.testing.assert_array_equal(blocks.slot, [[2, 0], [10, 3]])
    np.testing.assert_array_equal(blocks.topology.row, [0, 0, 1, 1] + [5] * 6)
    np.testing.assert_array_equal(blocks.topology.column, [0, 1, 3, 4] + [5] * 6)


def test_choices_of_column_blocks_by_hand():
    # Of the same experts the columns are 0 and 1, 2, 3 and 4.
    routing = routing_of(np.array([[[2, 1], [0, 1]]]), np.array([[[True, True], [False, True]]]))
    routing = routing._replace(
        weight=tf.constant([[[0.75, 0.25], [0.0, 1.0]]]), position=tf.constant([[[0, 0], [0, 1]]])
    )
    home = Dropless(expert_sizes=(2, 1, 2)).holding.to_expert_index(routing, None)
    np.testing.assert_array_equal(home.dispatched, [[[1, 1, 1, 0], [0, 0, 1, 0]]])
    np.testing.assert_array_equal(home.expert[home.dispatched], [3, 4, 2, 2])
    np.testing.assert_array_equal(home.weight, [[[0.75, 0.75, 0.25, 0], [0, 0, 1, 0]]])
    np.testing.assert_array_equal(home.position, [[[0, 0, 0, 0], [0, 0, 1, 1]]])
    assert Dropless().holding.to_expert_index(routing, None) is routing


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gating": TopK(k=4), "activation": SwiGLU()},
        {"shared_expert": True, "num_groups": 2, "eval_num_groups": 4},
        {"gating": ExpertChoice(), "capacity_factor": 2.0, "eval_capacity_factor": 2.0},
        {"capacity_factor": 1.0, "eval_capacity_factor": 1.0},
    ],
    ids=str,
)
def test_every_dispatcher_evaluates_as_training_computes(changes):
    inputs, mask = random_inputs(4, TOKENS), tf.sequence_mask([6, 2, 5, 6], TOKENS)
    expected = None
    for evaluator in EVALUATORS:
        moe = moe_of(eval_dispatcher=evaluator, **changes)
        theta = init_theta(moe.weights(), 0)
        if expected is None:
            expected = moe.fprop(theta, inputs, tokens_of(mask), TRAINING).outputs
            assert np.abs(expected).max() > 0.01
        found = moe.fprop(theta, inputs, tokens_of(mask), EVALUATION)
        np.testing.assert_allclose(found.outputs, expected, atol=1e-5, err_msg=str(evaluator))
        assert found.stats.load.shape == (
            EXPERTS,
        )  # statistics of routing are those of the original experts


@pytest.mark.parametrize("evaluator", EVALUATORS, ids=lambda d: type(d).__name__)
def test_shapes_may_be_unknown_in_evaluation(evaluator):
    moe = moe_of(eval_dispatcher=evaluator)
    theta, inputs = init_theta(moe.weights(), 0), random_inputs(3, TOKENS)

    def run(inputs):
        mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        return moe.fprop(theta, inputs, tokens_of(mask), EVALUATION).outputs

    signature = [tf.TensorSpec([None, None, MODEL])]
    compiled = tf.function(run, autograph=False, input_signature=signature)
    np.testing.assert_allclose(compiled(inputs), run(inputs), atol=1e-5)


def test_expert_dropout_is_trainings_alone():
    moe = moe_of(expert_dropout_rate=0.5)
    theta, inputs = init_theta(moe.weights(), 0), random_inputs(2, TOKENS)
    tokens = tokens_of(tf.ones([2, TOKENS], tf.bool))
    trained, again, evaluated, undropped = (
        layer.fprop(theta, inputs, tokens, context).outputs
        for layer, context in [
            (moe, TRAINING),
            (moe, TRAINING),
            (moe, EVALUATION),
            (moe_of(), EVALUATION),
        ]
    )
    np.testing.assert_array_equal(trained, again)
    np.testing.assert_array_equal(evaluated, undropped)
    assert np.abs(trained - evaluated).max() > 0.01


@pytest.mark.slow
def test_xla_gives_the_same_and_copies_no_weights():
    moe = moe_of(dispatcher=dataclasses.replace(UNEVEN, block_size=2))
    theta, inputs = init_theta(moe.weights(), 0), random_inputs(4, 12)
    tokens = tokens_of(tf.sequence_mask([12, 5, 12, 9], 12))

    def run(inputs, theta):
        with tf.GradientTape() as tape:
            tape.watch([inputs, theta])
            output = moe.fprop(theta, inputs, tokens, TRAINING)
            total = tf.reduce_sum(tf.sin(output.outputs)) + output.loss
        return output.outputs, tape.gradient(total, [inputs, theta])

    compiled = tf.function(run, autograph=False, jit_compile=True)
    got, expected = (
        tf.nest.flatten(f(inputs, theta), expand_composites=True) for f in (compiled, run)
    )
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # 96 choices in blocks of 2, and 5 more for what runs leave over: 53 row blocks, and 4 times as
    # many of the hidden layer, H 3. A block's weights are 5 · 3, more than its 2 · 3 values.
    text = compiled.experimental_get_compiler_ir(inputs, theta)(stage="optimized_hlo")
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
    assert max(np.prod(shape) for shape in shapes) == 4 * 53 * 2 * HIDDEN


def test_weights_begin_with_the_fan_in_of_their_whole_expert():
    # U(±√(3 / fan_in)) has a deviation of 1/√fan_in; every block has 64 · 256 draws.
    layer = FeedForward(model_dim=256, hidden_dim=64, num_experts=3, activation=SwiGLU())
    held = Dropless(expert_sizes=(1, 4, 2)).holding.weights(layer.weights())
    theta = init_theta(held, 0).experts
    for name in ("wi", "wg"):
        assert theta[name].shape == (7, 256, 64)
        np.testing.assert_allclose(np.std(theta[name], axis=(1, 2)), 256**-0.5, rtol=0.03)
    size = np.array([1, 4, 4, 4, 4, 2, 2])
    np.testing.assert_allclose(np.std(theta.wo, axis=(1, 2)), (64 * size) ** -0.5, rtol=0.03)
    # The same in a scan, whose layers are stacked before experts.
    scanned = init_theta(held.map(lambda spec: spec.stacked(2, "Y")), 0).experts
    deviation = np.std(scanned.wo, axis=(2, 3))
    np.testing.assert_allclose(deviation, [(64 * size) ** -0.5] * 2, rtol=0.03)


def test_blocks_follow_experts_not_columns():
    # 4096 choices, 16 experts of 64 column blocks together: a quarter of an expert's share is 64.
    sizes = (4,) * 16
    routing = routing_of(np.zeros([8, 256, 2], int), np.ones([8, 256, 2], bool))
    layer, theta = experts_of(sizes)
    seen = []

    class Unchanged:
        def by_products(self, rows, products):
            del products
            seen.append(rows.shape[0])
            return rows

    Dropless(expert_sizes=sizes).dispatch(random_inputs(8, 256), routing, None, Unchanged())
    assert seen == [4096 + 16 * 64]
    assert count_weights(layer.weights()) * 4 == sum(
        int(tf.size(w)) for w in theta.experts.values()
    )


@pytest.mark.parametrize("sizes", [(), (1, 0, 2), (2, -1)])
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match=r"expert_sizes must .* got \("):
        Dropless(expert_sizes=sizes)


def test_sizes_of_other_experts():
    with pytest.raises(
        ValueError,
        match=r"has 5 sizes, \(2, 1, 4, 1, 3\), for 4 experts; give one for each of num_exp",
    ):
        moe_of(num_experts=4).weights()


def test_a_mesh():
    layer, theta = experts_of()
    routing = routing_of(np.zeros([GROUPS, TOKENS, 1], int), np.ones([GROUPS, TOKENS, 1], bool))
    message = r"without a mesh: use --runtime=local, or moe.dispatcher=Fitted\(\)"
    with use_mesh(parse_mesh("data:2"), {}), pytest.raises(ValueError, match=message):
        UNEVEN.dispatch(random_inputs(GROUPS, TOKENS), routing, None, HeldExperts(layer, theta))


def test_evaluation_takes_no_sizes():
    with pytest.raises(ValueError, match=r"has its own layout of experts.* such as moe.eval_d"):
        moe_of(eval_dispatcher=UNEVEN)
    sizes = "model.moe.eval_dispatcher=VExperts(devices=2, slots_per_device=6)"
    with pytest.raises(ValueError, match=r"eval_dispatcher=VExperts\(.*has its own layout"):
        override(get_params("tiny.MoE"), [sizes])
