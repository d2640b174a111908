import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn import random

SHAPES = [(), (7,), (2, 3, 16), (0, 4)]
SEEDS = [(1, 0), (123, -456), (2**31 - 1, -(2**31))]


def positive(seed):
    return [number % 2**32 for number in seed]


def four_ways(draw, shapes):
    """Functions of a seed: kernel and elementwise draws of all shapes, by TensorFlow and by XLA."""

    def kernel(seed):
        return [draw(shape, seed) for shape in shapes]

    def elementwise(seed):
        with random.draw_elementwise():
            return kernel(seed)

    return [
        tf.function(f, autograph=False, jit_compile=jit)
        for f in (kernel, elementwise)
        for jit in (False, True)
    ]


def test_uniform_numbers_are_bitwise_the_same_four_ways_and_tensorflows_own():
    functions = four_ways(random.uniform, SHAPES)
    for seed in SEEDS:
        for function in functions:
            for shape, values in zip(SHAPES, function(tf.constant(seed)), strict=True):
                expected = tf.random.stateless_uniform(shape, positive(seed), alg="philox")
                np.testing.assert_array_equal(values, expected)


@pytest.mark.slow
def test_normal_numbers_are_the_same_four_ways_and_tensorflows_own():
    for function in four_ways(random.normal, SHAPES):
        for shape, values in zip(SHAPES, function(tf.constant(SEEDS[1])), strict=True):
            expected = tf.random.stateless_normal(shape, positive(SEEDS[1]), alg="philox")
            # sin, cos and log differ by an ulp or two of numbers up to 2π and 4.
            np.testing.assert_allclose(values, expected, rtol=0, atol=3e-6)


@pytest.mark.slow
def test_keep_is_the_same_four_ways_and_compares_bytes_of_words():
    shapes = [*SHAPES, (5, 2)]

    def keep(shape, seed):
        return random.keep_mask(tf.zeros(shape), seed, 0.3)

    kept, *others = (function(tf.constant(SEEDS[1])) for function in four_ways(keep, shapes))
    for i, shape in enumerate(shapes):
        count = int(np.prod(shape))
        words = tf.random.stateless_uniform(
            [count], positive(SEEDS[1]), None, None, tf.uint32, "philox"
        ).numpy()
        draws = words.astype("<u4").view(np.uint8)[:count].reshape(shape)
        # 0.3 of 256 is 76.8.
        assert any(np.array_equal(kept[i], draws >= bound) for bound in (76, 77))
        for other in others:
            np.testing.assert_array_equal(other[i], kept[i])


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_the_mean_of_many_draws_is_the_rate(rate):
    """0.1 and 0.9 are 0.0016 from the nearest 256th, twice what is allowed."""

    @tf.function(autograph=False)
    def dropped(seeds):
        def one(seed):
            kept = random.keep_mask(tf.zeros([1280]), seed, rate)
            return tf.reduce_mean(tf.cast(kept, tf.float32))

        return 1.0 - tf.map_fn(one, seeds, fn_output_signature=tf.float32)

    seeds = tf.stack([tf.range(4000), tf.ones([4000], tf.int32)], axis=1)
    error = (rate * (1 - rate) / (1280 * 4000) + 1 / (4 * 256**2 * 4000)) ** 0.5  # bytes, bounds
    np.testing.assert_allclose(tf.reduce_mean(dropped(seeds)), rate, atol=6 * error, rtol=0)


def test_keep_keeps_its_share_of_a_dynamic_shape():
    draw = tf.function(lambda like: random.keep_mask(like, [1, 2], 0.1), autograph=False)
    for last in (None, 7, 8):
        traced = draw.get_concrete_function(tf.TensorSpec([None, last]))
        kept = traced(tf.zeros([20_000, last or 5])).numpy()
        np.testing.assert_allclose(kept.mean(), 0.9, atol=0.005)


def test_numpys_philox_agrees():
    """An independent implementation, at a counter whose low half overflows."""
    counter = np.array([2**64 - 2, 7], np.uint64)
    key = 0x0123456789ABCDEF
    words = random._philox(
        tf.constant([0, 1, 2, 3], tf.uint64), tf.constant([key], tf.uint64), tf.constant(counter)
    )
    for block in range(4):
        total = int(counter[0]) + (int(counter[1]) << 64) + block
        np.testing.assert_array_equal(words[:, block], _slow_philox(total, key))


def _slow_philox(counter, key):
    """Philox 4x32-10 with Python's integers, after the paper's section 2."""
    mask = 2**32 - 1
    r0, l0, r1, l1 = (counter >> 32 * i & mask for i in range(4))
    for i in range(10):
        k0 = ((key & mask) + i * 0x9E3779B9) & mask
        k1 = ((key >> 32) + i * 0xBB67AE85) & mask
        p0, p1 = r0 * 0xD2511F53, r1 * 0xCD9E8D57
        r0, l0, r1, l1 = p1 >> 32 ^ l0 ^ k0, p1 & mask, p0 >> 32 ^ l1 ^ k1, p0 & mask
    return [r0, l0, r1, l1]


def test_bounds():
    values = random.uniform([10_000], [3, 4], -2.0, 6.0).numpy()
    assert values.min() >= -2.0
    assert values.max() < 6.0
    np.testing.assert_allclose(values.mean(), 2.0, atol=0.1)


def test_a_dynamic_shape_falls_back_on_the_kernel():
    @tf.function(autograph=False)
    def draw(like):
        with random.draw_elementwise():
            return random.uniform(tf.shape(like), [5, 6])

    traced = draw.get_concrete_function(tf.TensorSpec([None, 3]))
    np.testing.assert_array_equal(traced(tf.zeros([2, 3])), random.uniform([2, 3], [5, 6]))


def test_elementwise_draws_hold_no_generator_of_xla():
    """XLA's partitioner cannot split that operation."""

    @tf.function(autograph=False, jit_compile=True)
    def draw(seed):
        with random.draw_elementwise():
            return random.uniform([64, 8], seed), random.normal([64, 8], seed)

    hlo = draw.experimental_get_compiler_ir(tf.constant([1, 2]))(stage="hlo")
    assert "u64[64,2]" in hlo
    assert "rng" not in hlo
