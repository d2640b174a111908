import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.attention import Attention, causal_bias, segment_bias
from lingvo_moe.layers.position import RelativeBias
from lingvo_moe.nn.layer import EVALUATION, Context, init_theta
from lingvo_moe.nn.nested_map import NestedMap

MODEL, HEADS, DIM = 6, 2, 4
LAYER = Attention(model_dim=MODEL, num_heads=HEADS, head_dim=DIM)


def theta():
    return init_theta(LAYER.weights(), 0)


def random(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def test_equals_keras():
    keras_layer = keras.layers.MultiHeadAttention(HEADS, DIM, use_bias=False)
    inputs, memory = random(2, 5, MODEL), random(2, 7, MODEL, seed=1)
    mask = np.random.default_rng(2).uniform(size=[2, 5, 7]) < 0.7
    keras_layer.build(inputs.shape, memory.shape)
    weights = theta()
    keras_layer.set_weights(
        [
            # Keras divides the logits by √D; here the query weights are as small as that.
            tf.reshape(weights.query * DIM**0.5, [MODEL, HEADS, DIM]),
            tf.reshape(weights.key, [MODEL, HEADS, DIM]),
            tf.reshape(weights.value, [MODEL, HEADS, DIM]),
            tf.reshape(weights.output, [HEADS, DIM, MODEL]),
        ]
    )
    expected = keras_layer(inputs, memory, attention_mask=mask)
    bias = tf.where(mask, 0.0, -1e9)[:, None]
    outputs = LAYER.fprop(weights, inputs, memory, bias, EVALUATION)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_biases_and_scaled_logits_equal_keras():
    layer = Attention(model_dim=MODEL, num_heads=HEADS, head_dim=DIM, use_bias=True, scaled=True)
    keras_layer = keras.layers.MultiHeadAttention(HEADS, DIM)
    inputs, memory = random(2, 5, MODEL), random(2, 7, MODEL, seed=1)
    keras_layer.build(inputs.shape, memory.shape)
    weights = {name: random(*spec.shape) for name, spec in layer.weights().items()}
    in_heads = [tf.reshape(weights[n], [-1, HEADS, DIM]) for n in ("query", "key", "value")]
    biases = [tf.reshape(weights[f"{n}_bias"], [HEADS, DIM]) for n in ("query", "key", "value")]
    output = tf.reshape(weights["output"], [HEADS, DIM, MODEL])
    pairs = zip(in_heads, biases, strict=True)
    keras_layer.set_weights([w for pair in pairs for w in pair] + [output, weights["output_bias"]])
    for keys in (memory, inputs):
        outputs = layer.fprop(NestedMap(weights), inputs, keys, tf.zeros([]), EVALUATION)
        np.testing.assert_allclose(outputs, keras_layer(inputs, keys), atol=1e-5)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_that_share_keys_equal_keras(key_heads):
    sizes = {"model_dim": MODEL, "num_heads": 4, "head_dim": DIM, "num_key_heads": key_heads}
    layer = Attention(scaled=True, **sizes)
    keras_layer = keras.layers.GroupQueryAttention(DIM, 4, key_heads, use_bias=False)
    inputs, memory = random(2, 5, MODEL), random(2, 7, MODEL, seed=1)
    keras_layer.build(inputs.shape, memory.shape)
    weights = {name: random(*spec.shape) for name, spec in layer.weights().items()}
    in_heads = [tf.reshape(weights[n], [MODEL, -1, DIM]) for n in ("query", "key", "value")]
    keras_layer.set_weights([*in_heads, tf.reshape(weights["output"], [4, DIM, MODEL])])
    for keys in (memory, inputs):
        outputs = layer.fprop(NestedMap(weights), inputs, keys, tf.zeros([]), EVALUATION)
        np.testing.assert_allclose(outputs, keras_layer(inputs, keys), atol=1e-5)


def test_heads_of_keys_divide_the_heads():
    with pytest.raises(ValueError, match="divide the 4 heads, got 3"):
        Attention(model_dim=MODEL, num_heads=4, head_dim=DIM, num_key_heads=3)


def test_attends_where_the_bias_points():
    # All the weight on position 2: the output is that position's value, projected.
    inputs, weights = random(1, 4, MODEL), theta()
    bias = tf.constant([-1e9, -1e9, 0.0, -1e9])
    outputs = LAYER.fprop(weights, inputs, inputs, bias, EVALUATION)
    expected = inputs[0, 2:3] @ weights.value @ weights.output
    np.testing.assert_allclose(outputs[0], np.repeat(expected, 4, axis=0), atol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_row_of_padding_stays_finite(dtype):
    inputs = tf.cast(random(1, 3, MODEL), dtype)
    weights = theta().map(lambda w: tf.cast(w, dtype))
    nothing = segment_bias(tf.zeros([1, 3], tf.int32), tf.zeros([1, 3], tf.int32))
    outputs = LAYER.fprop(weights, inputs, inputs, nothing + causal_bias(3), EVALUATION)
    assert outputs.dtype == dtype
    assert np.all(np.isfinite(tf.cast(outputs, tf.float32)))


def test_later_tokens_change_nothing_earlier():
    inputs, changed = random(1, 6, MODEL), random(1, 6, MODEL, seed=1)
    mixed = tf.concat([inputs[:, :4], changed[:, 4:]], axis=1)
    outputs, others = (
        LAYER.fprop(theta(), x, x, causal_bias(6), EVALUATION) for x in (inputs, mixed)
    )
    np.testing.assert_array_equal(outputs[:, :4], others[:, :4])
    assert np.abs(outputs - others)[:, 4:].min(axis=-1).max() > 0


def test_a_packed_row_equals_separate_sentences():
    relative = RelativeBias(num_heads=HEADS, bidirectional=True)
    table = init_theta(relative.weights(), 3)
    inputs = random(1, 9, MODEL)
    segments = tf.constant([[1, 1, 1, 2, 2, 2, 2, 0, 0]])

    def attend(x, segments):
        position = tf.range(x.shape[1])
        bias = segment_bias(segments, segments) + relative.fprop(table, position, position)
        return LAYER.fprop(theta(), x, x, bias, EVALUATION)

    packed = attend(inputs, segments)
    for start, end in [(0, 3), (3, 7)]:
        alone = attend(inputs[:, start:end], tf.ones([1, end - start], tf.int32))
        np.testing.assert_allclose(packed[:, start:end], alone, atol=1e-6)


def test_masks_by_hand():
    allowed = segment_bias(tf.constant([[1, 2, 0]]), tf.constant([[1, 1, 2, 0]])) == 0
    np.testing.assert_array_equal(
        allowed[0, 0], [[True, True, False, False], [False, False, True, False], [False] * 4]
    )
    np.testing.assert_array_equal(
        causal_bias(3) == 0, [[True, False, False], [True, True, False], [True, True, True]]
    )


def test_dropout_only_in_training():
    layer = Attention(model_dim=MODEL, num_heads=HEADS, head_dim=DIM, dropout_rate=0.5)
    inputs, bias = random(1, 5, MODEL), tf.zeros([])
    plain = LAYER.fprop(theta(), inputs, inputs, bias, EVALUATION)
    evaluated = layer.fprop(theta(), inputs, inputs, bias, EVALUATION)
    np.testing.assert_array_equal(plain, evaluated)
    context = Context(tf.constant([1, 2]))
    trained = layer.fprop(theta(), inputs, inputs, bias, context)
    assert np.abs(trained - plain).max() > 1e-2


@pytest.mark.parametrize(
    ("bidirectional", "buckets"),
    [
        # 16 buckets a direction: 0 to 7 are one wide, then 8 log2(d/8)/4 of them per doubling: two.
        (True, {0: 0, -1: 1, -7: 7, -8: 8, -15: 9, -16: 10, -31: 11, -32: 12, -64: 14}),
        (True, {-90: 14, -91: 15, -128: 15, -5000: 15, 1: 17, 7: 23, 16: 26, 128: 31, 5000: 31}),
        # 32 buckets for the past, all of the future in bucket 0; 16 · log8(d/16) past distance 16.
        (False, {0: 0, 5: 0, 5000: 0, -1: 1, -15: 15, -16: 16, -32: 21, -64: 26, -128: 31}),
    ],
)
def test_buckets_by_hand(bidirectional, buckets):
    layer = RelativeBias(num_heads=1, bidirectional=bidirectional)
    assert layer.bucket(tf.constant(list(buckets))).numpy().tolist() == list(buckets.values())


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 64), (16, 128), (8, 20)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_equal_exact_arithmetic(bidirectional, num_buckets, max_distance):
    # Bucket exact + j begins at exact · (max/exact)^(j/wide). Raised to the power of wide, in
    # whole numbers: d^wide · exact^j >= exact^wide · max^j.
    layer = RelativeBias(
        num_heads=1,
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    one_way = num_buckets // 2 if bidirectional else num_buckets
    exact = one_way // 2
    wide = one_way - exact

    def bucket(distance):
        if distance < exact:
            return distance
        reached = (
            j for j in range(wide) if distance**wide * exact**j >= exact**wide * max_distance**j
        )
        return exact + max(reached)

    distances = range(300)
    past = layer.bucket(tf.constant([-d for d in distances])).numpy()
    np.testing.assert_array_equal(past, [bucket(d) for d in distances])
    future = layer.bucket(tf.constant(distances)).numpy()[1:]
    expected = [one_way + bucket(d) if bidirectional else 0 for d in distances][1:]
    np.testing.assert_array_equal(future, expected)


def test_bias_looks_up_key_minus_query():
    layer = RelativeBias(num_heads=2, bidirectional=False)
    table = init_theta(layer.weights(), 0)
    bias = layer.fprop(table, tf.constant([5]), tf.constant([3, 5]))
    np.testing.assert_array_equal(bias[:, 0], tf.transpose(tf.gather(table.bias, [2, 0])))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_bias_by_distance(bidirectional):
    relative = RelativeBias(num_heads=2, bidirectional=bidirectional)
    theta = init_theta(relative.weights(), 0)
    by_distance = relative.by_distance(theta)
    for distance in (0, 1, 20, 127, 128, 500):
        expected = relative.fprop(theta, tf.constant([600]), tf.constant([600 - distance]))
        np.testing.assert_array_equal(by_distance[:, min(distance, 128)], expected[:, 0, 0])
