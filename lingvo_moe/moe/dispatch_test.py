import functools

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.megablocks.dropless import Dropless
from lingvo_moe.moe.dispatch import Einsum, Gather
from lingvo_moe.moe.experts import HeldExperts
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.gatings.base import Routing
from lingvo_moe.moe.ragged import Ragged, faster_together
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap

TRAINING = Context(tf.constant([1, 2]))
GROUPS, TOKENS, EXPERTS, MODEL = 2, 9, 4, 6
LAYER = FeedForward(model_dim=MODEL, hidden_dim=5, num_experts=EXPERTS, use_bias=True)
WEIGHTS = ("wi", "wi_bias", "wo", "wo_bias")
DISPATCHERS = [Einsum(), Gather(), Ragged(), Dropless(block_size=4)]


def make_routing(expert, wanted, capacity, rng):
    """A Routing of given experts [G, S, K]: places in order of tokens, random weights."""
    position = np.zeros_like(expert)
    for group in range(expert.shape[0]):
        queue = np.zeros(EXPERTS, int)
        for k in range(expert.shape[2]):
            for token in range(expert.shape[1]):
                if wanted[group, token, k]:
                    position[group, token, k] = queue[expert[group, token, k]]
                    queue[expert[group, token, k]] += 1
    dispatched = wanted if capacity is None else wanted & (position < capacity)
    weight = np.where(dispatched, rng.uniform(0.1, 1.0, expert.shape), 0.0)
    return Routing(
        tf.constant(expert, tf.int32),
        tf.constant(position, tf.int32),
        tf.constant(weight, tf.float32),
        tf.constant(dispatched),
        tf.reduce_sum(tf.cast(wanted, tf.float32), -1),
        tf.reduce_sum(tf.cast(wanted & ~dispatched, tf.float32), -1),
        tf.constant(0.0),
        NestedMap(),
    )


def random_experts(rng, choices):
    """Distinct experts for the choices of a token, [G, S, K]."""
    return rng.permuted(np.tile(np.arange(EXPERTS), (GROUPS, TOKENS, 1)), axis=2)[..., :choices]


def routings():
    """(name, routing, capacity)."""
    rng = np.random.default_rng(0)
    everyone = np.ones([GROUPS, TOKENS, 1], bool)
    padded = everyone & (np.arange(TOKENS) < 6)[None, :, None]
    for choices in (1, 2):
        experts = random_experts(rng, choices)
        same = np.broadcast_to(np.arange(choices), experts.shape)
        some = rng.uniform(size=experts.shape) < 0.6
        for name, expert, wanted, capacity in [
            ("no limit", experts, everyone, None),
            ("padding", experts, padded, None),
            ("drops", experts, everyone, 2),
            ("padding and drops", experts, padded, 1),
            ("choices not taken", experts, some, 3),
            ("all to one", same, everyone, TOKENS),
            ("all to one, drops", same, everyone, 1),
            ("nobody", experts, np.zeros_like(everyone), 2),
        ]:
            wanted = np.broadcast_to(wanted, expert.shape)
            yield pytest.param(
                make_routing(expert, wanted, capacity, rng), capacity, id=f"k={choices}, {name}"
            )


def inputs_and_theta():
    rng = np.random.default_rng(1)
    inputs = tf.constant(rng.normal(size=[GROUPS, TOKENS, MODEL]), tf.float32)
    theta = init_theta(LAYER.weights(), 0)
    return inputs, theta.map(lambda w: w + rng.normal(size=w.shape) if w.shape.rank == 2 else w)


def token_by_token(inputs, routing, theta):
    """Σ_k weight · (relu(x·wi_e + wi_bias_e)·wo_e + wo_bias_e), one token and choice at a time."""
    outputs = np.zeros(inputs.shape)
    wi, wi_bias, wo, wo_bias = (theta[name].numpy() for name in WEIGHTS)
    for index in np.ndindex(*routing.expert.shape):
        if routing.dispatched.numpy()[index]:
            e, x = routing.expert.numpy()[index], inputs.numpy()[index[:2]]
            hidden = np.maximum(x @ wi[e] + wi_bias[e], 0)
            outputs[index[:2]] += routing.weight.numpy()[index] * (hidden @ wo[e] + wo_bias[e])
    return outputs


def outputs_of(dispatcher, inputs, routing, capacity, theta):
    experts = HeldExperts(LAYER, NestedMap(experts=theta))
    return dispatcher.dispatch(inputs, routing, capacity, experts).outputs


def everywhere(inputs, routing, capacity, theta):
    """Every expert on every token, masked afterwards: the reference for gradients."""
    del capacity
    rows = tf.tile(tf.reshape(inputs, [1, -1, MODEL]), [EXPERTS, 1, 1])
    outputs = tf.reshape(LAYER.fprop(theta, rows), [EXPERTS, *inputs.shape])
    weight = routing.weight * tf.cast(routing.dispatched, tf.float32)
    return tf.einsum("GSKE,GSK,EGSM->GSM", tf.one_hot(routing.expert, EXPERTS), weight, outputs)


def gradients(compute, inputs, routing, capacity, theta):
    upstream = tf.constant(np.random.default_rng(2).normal(size=inputs.shape), tf.float32)
    sources = [inputs, *(theta[name] for name in WEIGHTS), routing.weight]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = compute(inputs, routing, capacity, theta)
        loss = tf.reduce_sum(outputs * upstream)
    return tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)


@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize(("routing", "capacity"), routings())
def test_outputs_and_gradients(dispatcher, routing, capacity):
    inputs, theta = inputs_and_theta()
    outputs = outputs_of(dispatcher, inputs, routing, capacity, theta)
    np.testing.assert_allclose(outputs, token_by_token(inputs, routing, theta), atol=1e-5)
    ours = gradients(functools.partial(outputs_of, dispatcher), inputs, routing, capacity, theta)
    expected = gradients(everywhere, inputs, routing, capacity, theta)
    for name, got, wanted in zip(["inputs", *WEIGHTS, "weight"], ours, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("routing", "capacity"), routings())
def test_ragged_is_the_same_together_and_one_by_one(routing, capacity, monkeypatch):
    inputs, theta = inputs_and_theta()
    expected = token_by_token(inputs, routing, theta)
    of_everywhere = gradients(everywhere, inputs, routing, capacity, theta)
    for rows in (-1000, 1000):  # separate products are free, or expensive
        monkeypatch.setattr(HeldExperts, "separate_rows", rows)
        outputs = outputs_of(Ragged(), inputs, routing, capacity, theta)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        ours = gradients(functools.partial(outputs_of, Ragged()), inputs, routing, capacity, theta)
        for got, wanted in zip(ours, of_everywhere, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=lambda d: type(d).__name__)
def test_shapes_may_be_unknown(dispatcher):
    inputs, theta = inputs_and_theta()
    rng = np.random.default_rng(0)
    wanted = np.ones([GROUPS, TOKENS, 2], bool)
    routing = make_routing(random_experts(rng, 2), wanted, None, rng)

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None, MODEL], tf.float32),
            *[tf.TensorSpec([None, None, 2], x.dtype) for x in routing[:4]],
        ],
    )
    def run(inputs, *choices):
        rest = Routing(*choices, *routing[4:])
        return outputs_of(dispatcher, inputs, rest, None, theta)

    expected = token_by_token(inputs, routing, theta)
    np.testing.assert_allclose(run(inputs, *routing[:4]), expected, atol=1e-5)


def test_ragged_ignores_capacity():
    # What the routing dispatched is computed, though it stands beyond place 0.
    inputs, theta = inputs_and_theta()
    rng = np.random.default_rng(0)
    wanted = np.ones([GROUPS, TOKENS, 1], bool)
    routing = make_routing(random_experts(rng, 1), wanted, None, rng)
    outputs = outputs_of(Ragged(), inputs, routing, 1, theta)
    np.testing.assert_allclose(outputs, token_by_token(inputs, routing, theta), atol=1e-5)


@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=lambda d: type(d).__name__)
def test_bfloat16_in_and_out(dispatcher):
    inputs, theta = inputs_and_theta()
    rng = np.random.default_rng(0)
    wanted = np.ones([GROUPS, TOKENS, 2], bool)
    routing = make_routing(random_experts(rng, 2), wanted, 4, rng)
    half = theta.map(lambda w: tf.cast(w, tf.bfloat16))
    outputs = outputs_of(dispatcher, tf.cast(inputs, tf.bfloat16), routing, 4, half)
    assert outputs.dtype == tf.bfloat16
    expected = token_by_token(inputs, routing, theta)
    np.testing.assert_allclose(tf.cast(outputs, tf.float32), expected, atol=0.1)


@pytest.mark.parametrize("together", [True, False])
def test_ragged_in_bfloat16_has_few_shapes(together, monkeypatch):
    # Each new shape is compiled by oneDNN.
    monkeypatch.setattr(HeldExperts, "separate_rows", 1000 if together else -1000)
    shapes, fprop = {tf.float32: set(), tf.bfloat16: set()}, FeedForward.fprop

    def recorded(layer, theta, rows, *rest, **how):
        shapes[rows.dtype].add(rows.shape[-2])
        return fprop(layer, theta, rows, *rest, **how)

    monkeypatch.setattr(FeedForward, "fprop", recorded)
    inputs, theta = inputs_and_theta()
    for dtype in shapes:
        cast_inputs, cast = tf.cast(inputs, dtype), theta.map(lambda w, d=dtype: tf.cast(w, d))
        for choices in (1, 2, 3):
            rng = np.random.default_rng(choices)
            wanted = np.ones([GROUPS, TOKENS, choices], bool)
            routing = make_routing(random_experts(rng, choices), wanted, None, rng)
            outputs = outputs_of(Ragged(), cast_inputs, routing, None, cast)
            expected = token_by_token(inputs, routing, theta)
            np.testing.assert_allclose(tf.cast(outputs, tf.float32), expected, atol=0.1)
    assert shapes[tf.bfloat16] == {32}
    assert len(shapes[tf.float32]) > 2


def test_experts_run_together_where_little_is_padded():
    # Of 8 experts with 10 rows each none is padded.
    assert faster_together(tf.fill([8], 10), 0)
    # (40 + 10)·4 = 200 padded; 40 + 3·8 rows and (10 + 24)·4 for separate products are 200 too.
    assert faster_together(tf.constant([40, 8, 8, 8]), 24)
    assert not faster_together(tf.constant([41, 8, 8, 8]), 24)
    # A step of decoding, where 24 of 64 experts have rows: (20 + 10)·64 = 1920 padded, and
    # 20 + 23·4 + (10 + 24)·24 = 928 for separate products.
    assert not faster_together(tf.constant([20] + [4] * 23 + [0] * 40), 24)


def test_separate_products_cost_more_in_training_and_fewer_rows_of_a_large_expert():
    def rows(hidden_dim, context):
        network = FeedForward(model_dim=128, hidden_dim=hidden_dim, num_experts=EXPERTS)
        return HeldExperts(network, NestedMap(), context).separate_rows

    assert rows(512, EVALUATION) == 2
    assert rows(2048, EVALUATION) == 0
    assert rows(512, TRAINING) == rows(2048, TRAINING) == 24
