import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.scan import scan
from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.dispatch import Einsum
from lingvo_moe.moe.gatings.balanced import Balanced
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.training.adafactor import Adafactor


def compiled(fn, mode):
    return fn if mode == "eager" else tf.function(fn, autograph=False, jit_compile=mode == "xla")


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_gradients_by_hand(mode):
    """x_i+1 = w_i·x_i + b·s_i + table_i, loss Σ x_i: three layers of one number."""

    def body(theta, x, shared, each):
        y = theta.w * x + shared["b"] * each + tf.cast(theta.table, tf.float32)
        return y, y, NestedMap(seen=y, layer=shared["n"], none=None)

    def run(w, b, x):
        with tf.GradientTape() as tape:
            tape.watch([w, b, x])
            shared = {"b": b, "n": tf.constant(7)}
            theta = NestedMap(table=tf.constant([0, 1, 0]), w=w)
            y, loss, aside = scan(body, theta, x, shared, tf.constant([1.0, 10.0, 100.0]))
            # aside is detached: this term moves no gradient
            objective = 2.0 * y + loss + 1000.0 * tf.reduce_sum(aside.seen)
        return y, loss, aside.seen, aside.layer, tape.gradient(objective, [w, b, x])

    y, loss, seen, layer, (dw, db, dx) = compiled(run, mode)(
        tf.constant([2.0, 3.0, 0.5]), tf.constant(1.0), tf.constant(4.0)
    )
    # x: 4 → 2·4+1 = 9 → 3·9+10+1 = 38 → 0.5·38+100 = 119
    assert seen.numpy().tolist() == [9.0, 38.0, 119.0]
    assert (y, loss) == (119.0, 166.0)
    assert layer.numpy().tolist() == [7, 7, 7]
    # upstream of x3: 2+1 = 3; of x2: 3·0.5+1 = 2.5; of x1: 2.5·3+1 = 8.5
    assert dw.numpy().tolist() == [8.5 * 4, 2.5 * 9, 3.0 * 38]
    assert db == 8.5 * 1 + 2.5 * 10 + 3.0 * 100
    assert dx == 8.5 * 2


def test_the_program_does_not_grow_with_depth():
    def lines(depth):
        def body(theta, x, shared, each):
            del shared, each
            return tf.tanh(x @ theta), tf.reduce_sum(x), None

        @tf.function(autograph=False, jit_compile=True)
        def gradient(w, x):
            with tf.GradientTape() as tape:
                tape.watch(w)
                y, loss, _ = scan(body, w, x, None, tf.zeros([depth]))
                objective = tf.reduce_sum(y) + loss
            return tape.gradient(objective, w)

        text = gradient.experimental_get_compiler_ir(tf.ones([depth, 4, 4]), tf.ones([2, 4]))
        return len(text(stage="hlo").splitlines())

    assert lines(3) == lines(30)


PARAMS = TransformerParams(
    num_encoder_layers=4,
    num_decoder_layers=2,
    model_dim=8,
    hidden_dim=16,
    num_heads=2,
    head_dim=4,
    moe=MoEParams(num_experts=4, training=Einsum(groups=2, capacity_factor=1.0)),
    dropout_rate=0.1,
)


def model(scan, moe=True, **changes):
    experts = dataclasses.replace(PARAMS.moe, **changes) if moe else None
    params = dataclasses.replace(PARAMS, scan=scan, moe=experts)
    return Transformer(params=params, source_vocab_size=20, target_vocab_size=20)


def stack_by_hand(theta, size):
    """The unrolled theta of a stack as that of a scan."""
    layers = sorted(name for name in theta if name.startswith("layer"))
    rest = {name: value for name, value in theta.items() if name not in layers}
    block = {
        layers[place]: theta[layers[place]].map(
            lambda *ws: tf.stack(ws), *(theta[name] for name in layers[place + size :: size])
        )
        for place in range(size)
    }
    return NestedMap(rest, block=NestedMap(block))


def batch():
    rng = np.random.default_rng(0)
    segments = np.ones([2, 6], np.int32)
    segments[1, 4:] = 0
    ids = [tf.constant(rng.integers(1, 20, [2, 6]), tf.int32) for _ in range(2)]
    return [Tokens(x, tf.constant(segments)) for x in ids]


def step(transformer, theta, context):
    source, target = batch()
    with tf.GradientTape() as tape:
        theta.map(tape.watch)
        output = transformer.fprop(theta, source, target, context)
        objective = tf.reduce_sum(tf.sin(output.outputs)) + output.moe_loss
    return output, tape.gradient(objective, theta)


@pytest.mark.parametrize(
    ("moe", "mode"),
    [
        pytest.param(True, "graph", marks=pytest.mark.slow),
        (False, "eager"),
        pytest.param(True, "xla", marks=pytest.mark.slow),
        pytest.param(False, "xla", marks=pytest.mark.slow),
    ],
)
def test_a_model_is_the_unrolled_one(moe, mode):
    size = 2 if moe else 1
    plain = init_theta(model(False, moe).weights(), 3)
    looped = NestedMap({side: stack_by_hand(plain[side], size) for side in plain})
    specs = model(True, moe).weights()
    assert {n: s.shape for n, s in specs.flatten()} == {
        n: tuple(w.shape) for n, w in looped.flatten()
    }
    context = Context(tf.constant([1, 2]))
    expected, grads = step(model(False, moe), plain, context)
    output, looped_grads = compiled(lambda t: step(model(True, moe), t, context), mode)(looped)
    np.testing.assert_allclose(output.outputs, expected.outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.moe_loss, expected.moe_loss, rtol=1e-5)
    for (name, got), (_, want) in zip(
        output.stats.flatten(), expected.stats.flatten(), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=name)
    for side in grads:
        want = stack_by_hand(grads[side], size)
        for (name, a), (_, b) in zip(looped_grads[side].flatten(), want.flatten(), strict=True):
            np.testing.assert_allclose(
                tf.convert_to_tensor(a),
                tf.convert_to_tensor(b),
                rtol=1e-3,
                atol=2e-5,
                err_msg=name,
            )


def test_a_gating_without_a_balance_loss():
    one = model(True, gating=Balanced())
    output = one.fprop(init_theta(one.weights(), 3), *batch(), Context(tf.constant([1, 2])))
    assert len(output.routings["encoder"]) == 2


def test_evaluation_and_decoding_take_slices():
    plain = init_theta(model(False).weights(), 3)
    looped = NestedMap({side: stack_by_hand(plain[side], 2) for side in plain})
    source, target = batch()
    for theta, transformer in ((plain, model(False)), (looped, model(True))):
        logits = transformer.fprop(theta, source, target, EVALUATION).outputs
        laid_out = transformer.lay_out(theta)
        lengths = tf.constant([6, 4])
        encoded = transformer.encode(laid_out, source.ids, lengths)
        caches = transformer.empty_caches(lengths, 3, tf.float32)
        first, *_ = transformer.step(
            laid_out, target.ids[:, :1], tf.constant(0), caches, visible(), encoded
        )
        if theta is plain:
            expected = logits
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            first[:, 0, : expected.shape[-1]], expected[:, 0], rtol=1e-4, atol=1e-5
        )


def visible():
    return tf.constant([[[True, False, False]]] * 2)


def test_adafactor_treats_stacked_layers_as_its_own_weights():
    optimizer = Adafactor(min_dim_size_to_factor=2)
    plain, looped = (model(scan).weights() for scan in (False, True))
    theta = init_theta(plain, 1)
    grads = theta.map(lambda w: tf.sin(100.0 * w))
    one = optimizer.update(theta, init_theta(optimizer.slots(plain), 0), grads, 0, plain)
    two = optimizer.update(
        NestedMap({side: stack_by_hand(theta[side], 2) for side in theta}),
        init_theta(optimizer.slots(looped), 0),
        NestedMap({side: stack_by_hand(grads[side], 2) for side in grads}),
        0,
        looped,
    )
    for side in theta:
        want = stack_by_hand(one[0][side], 2)
        for (name, a), (_, b) in zip(two[0][side].flatten(), want.flatten(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_block_must_fit():
    with pytest.raises(
        ValueError, match=r"num_decoder_layers to be a multiple of moe.every_n \(2\), got 3"
    ):
        dataclasses.replace(PARAMS, num_decoder_layers=3, scan=True)
