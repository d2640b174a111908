import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.position import Relative, Rotary, Sinusoidal
from lingvo_moe.nn.tokens import Tokens


def test_sines_before_cosines_by_hand():
    # M 4: wavelengths 2π and 10000·2π. Position 3: sin 3, sin 0.0003, cos 3, cos 0.0003.
    encoded = Sinusoidal(first=2).encode(tf.ones([1, 4]), tf.constant([1]))
    expected = [1 + math.sin(3), 1 + math.sin(0.0003), 1 + math.cos(3), 1 + math.cos(0.0003)]
    np.testing.assert_allclose(encoded, [expected], rtol=1e-6)


@pytest.mark.parametrize("size", [2, 5, 32])
def test_every_element_by_its_formula(size):
    half = size // 2
    encoded = Sinusoidal().encode(tf.zeros([7, size]), tf.range(7))
    for place in range(7):
        for i in range(half):
            angle = place * 10000.0 ** (-i / max(half - 1, 1))
            np.testing.assert_allclose(encoded[place, i], math.sin(angle), atol=1e-6)
            np.testing.assert_allclose(encoded[place, half + i], math.cos(angle), atol=1e-6)
    assert not np.any(encoded[:, 2 * half :])  # of an odd size the last is 0


def test_positions_start_anew_with_every_sentence():
    segments = tf.constant([[1, 1, 1, 2, 2, 0], [1, 0, 0, 0, 0, 0]])
    positions = Tokens(segments, segments).positions
    np.testing.assert_array_equal(positions[:, :5], [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])


def test_absolute_positions_have_no_bias_and_relative_ones_no_encoding():
    assert Sinusoidal().relative_bias(2, True) is None
    assert Relative().relative_bias(2, True).num_heads == 2
    inputs = tf.ones([1, 2, 4], tf.bfloat16)
    assert Relative().encode(inputs, tf.range(2)) is inputs
    assert Sinusoidal().encode(inputs, tf.range(2)).dtype == tf.bfloat16


def test_rotary_turns_pairs_as_complex_numbers():
    heads = np.random.default_rng(0).normal(size=[2, 3, 4, 7])
    positions = np.array([[0, 1, 2, 0], [0, 1, 2, 3]], np.int32)
    placed = Rotary(base=100.0).place(tf.constant(heads, tf.float32), tf.constant(positions))
    turns = np.exp(1j * positions[:, None, :, None] * 100.0 ** (-np.arange(3) / 3))
    expected = (heads[..., :3] + 1j * heads[..., 3:6]) * turns
    np.testing.assert_allclose(placed[..., :3], expected.real, atol=1e-5)
    np.testing.assert_allclose(placed[..., 3:6], expected.imag, atol=1e-5)
    np.testing.assert_array_equal(placed[..., 6:], heads[..., 6:].astype(np.float32))
    one = Rotary(base=100.0).place(tf.constant(heads, tf.float32), tf.constant(3))
    np.testing.assert_allclose(one[1, :, 3], placed[1, :, 3], atol=1e-5)
