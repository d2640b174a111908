"""G groups, S tokens, N = G·S, K choices, E experts, M model, H hidden."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.config import registry
from lingvo_moe.config.params import override
from lingvo_moe.data.pipeline import TrainInput
from lingvo_moe.jobs.training import train_step
from lingvo_moe.megablocks.dropless import Dropless, in_blocks
from lingvo_moe.moe.activation import SwiGLU
from lingvo_moe.moe.dispatch import Gather, expert_or_none
from lingvo_moe.moe.experts import HeldExperts
from lingvo_moe.moe.feed_forward import FeedForward
from lingvo_moe.moe.gatings.balanced import Balanced
from lingvo_moe.moe.gatings.switch import Switch
from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoE, MoEParams
from lingvo_moe.moe.ragged import Ragged
from lingvo_moe.nn.layer import EVALUATION, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import SMALLEST
from lingvo_moe.testing.routings import MODEL, TRAINING, random_inputs, routing_of, with_gradients
from lingvo_moe.testing.tiny_world import dataset
from lingvo_moe.testing.tokens import tokens_of

GROUPS, TOKENS, HIDDEN = 2, 6, 7
DISPATCHERS = [Ragged(), Dropless(block_size=1), Dropless(block_size=5)]


def experts_of(num_experts, **changes):
    layer = FeedForward(model_dim=MODEL, hidden_dim=HIDDEN, num_experts=num_experts, **changes)
    return layer, init_theta(layer.weights(), 0)


def routings():
    """(number of experts, routing)."""
    rng = np.random.default_rng(0)
    shape = (GROUPS, TOKENS)
    everyone = np.ones(shape, bool)
    padded = np.broadcast_to(np.arange(TOKENS) < 4, shape)
    for experts, choices in [(1, 1), (9, 3)]:
        drawn = rng.permuted(np.tile(np.arange(experts), (*shape, 1)), axis=2)[..., :choices]
        last = np.broadcast_to(np.arange(experts)[-choices:], drawn.shape)
        some = rng.uniform(size=drawn.shape) < 0.5
        for name, expert, dispatched in [
            ("anything", drawn, everyone[..., None]),
            ("padding", drawn, padded[..., None]),
            ("choices not taken", drawn, some),
            ("all to the last", last, everyone[..., None]),
            ("nobody", drawn, ~everyone[..., None]),
        ]:
            routing = routing_of(expert, np.broadcast_to(dispatched, expert.shape))
            yield pytest.param(experts, routing, id=f"E={experts}, k={choices}, {name}")


def token_by_token(inputs, routing, theta):
    """Σ_k weight · wo_e·relu(wi_e·x), one token and one choice at a time."""
    groups = []
    for g in range(inputs.shape[0]):
        outputs = []
        for s in range(inputs.shape[1]):
            output = tf.zeros([MODEL])
            for k in np.flatnonzero(routing.dispatched[g, s]):
                e = int(routing.expert[g, s, k])
                hidden = tf.nn.relu(tf.linalg.matvec(theta.wi[e], inputs[g, s], transpose_a=True))
                expert_output = tf.linalg.matvec(theta.wo[e], hidden, transpose_a=True)
                output += routing.weight[g, s, k] * expert_output
            outputs.append(output)
        groups.append(tf.stack(outputs))
    return tf.stack(groups)


def outputs_of(dispatcher, inputs, routing, layer, theta, context=EVALUATION):
    experts = HeldExperts(layer, NestedMap(experts=theta), context)
    return dispatcher.dispatch(inputs, routing, None, experts).outputs


@pytest.mark.parametrize(("num_experts", "routing"), routings())
def test_a_loop_over_tokens_gives_the_same(num_experts, routing):
    layer, theta = experts_of(num_experts)
    inputs = random_inputs(GROUPS, TOKENS)
    expected = with_gradients(
        lambda: token_by_token(inputs, routing, theta), inputs, routing, theta
    )
    for dispatcher in DISPATCHERS:
        got = with_gradients(
            lambda d=dispatcher: outputs_of(d, inputs, routing, layer, theta),
            inputs,
            routing,
            theta,
        )
        for name, ours, theirs in zip("yxgio", got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=f"{dispatcher} {name}")


@pytest.mark.parametrize(
    "gating",
    [
        Top2(),
        TopK(k=2),
        TopK(k=1, normalize=False),
        TopK(k=4),
        Switch(),
        Balanced(),
    ],
    ids=str,
)
def test_every_gating_trains_as_with_slots_for_all(gating):
    inputs, mask = random_inputs(4, 6), tf.sequence_mask([6, 2, 5, 6], 6)
    results = []
    for policy in (
        Gather(groups=2, capacity_factor=None),
        Dropless(groups=2, block_size=4),
        Ragged(groups=2),
    ):
        params = MoEParams(num_experts=4, gating=gating, training=policy)
        moe = MoE(model_dim=MODEL, hidden_dim=HIDDEN, params=params, activation=SwiGLU())
        theta = init_theta(moe.weights(), 0)
        with tf.GradientTape() as tape:
            tape.watch([inputs, theta])
            output = moe.fprop(theta, inputs, tokens_of(mask), TRAINING)
            total = tf.reduce_sum(tf.sin(output.outputs)) + output.loss
        assert tf.reduce_sum(output.routing.dropped) == 0
        flat = tf.nest.flatten(tape.gradient(total, [inputs, theta]), expand_composites=True)
        results.append([output.outputs, *flat])
    slots, *dropless = results
    assert np.abs(slots[0]).max() > 0.01
    for result in dropless:
        for got, expected in zip(result, slots, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.slow
def test_xla_gives_the_same_and_never_has_the_weights_once_a_block():
    layer, theta = experts_of(3, activation=SwiGLU())
    inputs = random_inputs(GROUPS, 16)
    expert = np.random.default_rng(0).permuted(np.tile(range(3), (GROUPS, 16, 1)), axis=2)[..., :2]
    routing = routing_of(expert, np.ones(expert.shape, bool))

    def run(inputs, theta, routing):
        tensors = [inputs, theta, routing.weight]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = outputs_of(Dropless(block_size=2), inputs, routing, layer, theta)
            total = tf.reduce_sum(tf.sin(outputs))
        return outputs, *tape.gradient(total, tensors)

    compiled = tf.function(run, autograph=False, jit_compile=True)
    got, expected = (f(inputs, theta, routing) for f in (compiled, run))
    for ours, theirs in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # 64 choices in blocks of 2, and 3 more for what three runs leave over: 35 blocks. The largest
    # tensor is a dense one of 70 rows; the weights of each block would be 35 · 5 · 7 elements.
    text = compiled.experimental_get_compiler_ir(inputs, theta, routing)(stage="optimized_hlo")
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
    assert (35, 2, HIDDEN) in shapes or (70, HIDDEN) in shapes
    assert max(np.prod(shape) for shape in shapes) < 35 * MODEL * HIDDEN


def test_blocks_by_hand():
    # Two tokens, two choices, three experts: choices 0 and 3 go to expert 2, choice 1 to expert 0,
    # choice 2 nowhere. Blocks of 2: [1, -], [0, 3] and room for three more.
    expert = np.array([[[2, 0], [1, 2]]])
    routing = routing_of(expert, np.array([[[True, True], [False, True]]]))
    blocks = in_blocks(expert_or_none(routing, 3)[None], 3, 2, 5)
    np.testing.assert_array_equal(blocks.choice[0, 0], [1, 4, 0, 3, 4, 4, 4, 4, 4, 4])
    np.testing.assert_array_equal(blocks.slot[0, 0], [[2, 0], [10, 3]])
    np.testing.assert_array_equal(blocks.row_blocks[0, 0], [1, 0, 1])
    # With room for one block, two choices have no row.
    blocks = in_blocks(expert_or_none(routing, 3)[None], 3, 2, 1)
    np.testing.assert_array_equal(blocks.slot[0, 0], [[2, 0], [2, 2]])


@pytest.mark.parametrize(
    ("dispatcher", "own_network"),
    [(Ragged(), 1000), (Ragged(), -1000), (Dropless(block_size=4), 0)],
    ids=["Ragged, together", "Ragged, one by one", "Dropless"],
)
def test_experts_drop_out_each_by_itself(dispatcher, own_network, monkeypatch):
    monkeypatch.setattr(HeldExperts, "separate_rows", own_network)  # Ragged's
    # Two equal experts and 32 equal tokens, sixteen to each: with one mask for both experts the
    # same rows would come twice.
    layer, theta = experts_of(2, dropout_rate=0.5)
    theta = theta.map(lambda weight: tf.tile(weight[:1], [2, 1, 1]))
    inputs = tf.tile(random_inputs(1, 1), [1, 32, 1])
    expert = np.repeat([0, 1], 16)[None, :, None]
    routing = routing_of(expert, np.ones(expert.shape, bool))
    routing = routing._replace(weight=tf.ones(expert.shape))

    outputs = outputs_of(dispatcher, inputs, routing, layer, theta, TRAINING)[0].numpy()
    same = [np.allclose(a, b, atol=1e-5) for a, b in zip(outputs[:16], outputs[16:], strict=True)]
    assert np.mean(same) < 0.5
    calm = outputs_of(dispatcher, inputs, routing, layer, theta)[0]
    np.testing.assert_allclose(calm, np.tile(calm[:1], [32, 1]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dispatcher", ["Ragged()", "Dropless()"])
def test_training_drops_nothing(dispatcher):
    # A loop of steps as the training loop takes them, without balance loss, so loads are uneven.
    overrides = [
        *SMALLEST,
        f"model.moe.training={dispatcher}",
        "model.moe.gating.balance.weight=0.0",
    ]
    params = override(registry.get_params("tiny.MoE"), overrides)
    task = TranslationTask(params, tuple(dataset().pairs))
    runtime = Local(task, train_step(task))
    runtime.initialize(0)
    batches = TrainInput(dataset(), params.input, 0)
    steps = [runtime.train(batches.next_batch()) for _ in range(3)]
    for metrics in steps:
        np.testing.assert_array_equal(metrics.pair_dropped, 0.0)
        assert np.sum(metrics.pair_wanted) > metrics.tokens
        assert np.ptp(metrics.load / metrics.tokens) > 0.1
    assert steps[-1].nll / steps[-1].tokens < steps[0].nll / steps[0].tokens


def test_the_block_size_follows_the_shape():
    # 4096 choices: a quarter of each expert's share, from 8 to 128.
    expert = np.zeros([8, 256, 2], int)
    routing = routing_of(expert, np.ones(expert.shape, bool))
    seen = {}

    @dataclasses.dataclass
    class Unchanged:
        num_experts: int

        def by_products(self, rows, products):
            del products
            seen[self.num_experts] = rows.shape[1]
            return rows

    for num_experts in (8, 16, 64, 128, 1000):
        Dropless().dispatch(random_inputs(8, 256), routing, None, Unchanged(num_experts))
    assert seen == {
        8: 4096 + 8 * 128,
        16: 4096 + 16 * 64,
        64: 4096 + 64 * 16,
        128: 4096 + 128 * 8,
        1000: 4096 + 1000 * 8,
    }


def test_bad_block_size():
    with pytest.raises(ValueError, match=r"block_size must be >= 1 or None, got 0"):
        Dropless(block_size=0)
