import keras
import numpy as np
import tensorflow as tf

from lingvo_moe.layers.norm import LayerNorm, RMSNorm
from lingvo_moe.nn.layer import init_theta
from lingvo_moe.nn.nested_map import NestedMap


def test_by_hand():
    # RMS([3, 4, 0, 0]) = √(25/4) = 2.5.
    outputs = RMSNorm().fprop(
        NestedMap(scale=tf.constant([1.0, 2.0, 1.0, 1.0])), tf.constant([[3.0, 4.0, 0.0, 0.0]])
    )
    np.testing.assert_allclose(outputs, [[1.2, 3.2, 0.0, 0.0]], rtol=1e-6)


def test_equals_keras():
    layer = RMSNorm()
    inputs = tf.constant(np.random.default_rng(0).normal(size=[2, 3, 8]), tf.float32)
    outputs = layer.fprop(init_theta(layer.weights(8), 0), inputs)
    np.testing.assert_allclose(outputs, keras.ops.rms_normalization(inputs), atol=1e-5)


def test_zeros_stay_zero_and_types_stay():
    layer = RMSNorm()
    theta = init_theta(layer.weights(4), 0)
    outputs = layer.fprop(theta, tf.zeros([2, 4], tf.bfloat16))
    assert outputs.dtype == tf.bfloat16
    assert not np.any(tf.cast(outputs, tf.float32))
    # Statistics are float32: in bfloat16 the mean of squares of 300s would be off by a percent.
    outputs = layer.fprop(theta, tf.fill([1, 4], tf.constant(300, tf.bfloat16)))
    np.testing.assert_array_equal(tf.cast(outputs, tf.float32), np.ones([1, 4]))


def test_layer_norm_by_hand():
    # [1, 3, 1, 3] has the mean 2 and the standard deviation 1.
    theta = NestedMap(scale=tf.constant([1.0, 2.0, 1.0, 1.0]), bias=tf.constant([0, 0, 5.0, 0]))
    outputs = LayerNorm().fprop(theta, tf.constant([[1.0, 3.0, 1.0, 3.0]]))
    np.testing.assert_allclose(outputs, [[-1.0, 2.0, 4.0, 1.0]], atol=2e-5)


def test_layer_norm_equals_keras():
    layer, keras_layer = LayerNorm(epsilon=1e-3), keras.layers.LayerNormalization(epsilon=1e-3)
    inputs = tf.constant(np.random.default_rng(0).normal(size=[2, 3, 8]), tf.float32)
    scale, bias = np.random.default_rng(1).normal(size=[2, 8]).astype(np.float32)
    keras_layer.build(inputs.shape)
    keras_layer.set_weights([scale, bias])
    outputs = layer.fprop(NestedMap(scale=scale, bias=bias), inputs)
    np.testing.assert_allclose(outputs, keras_layer(inputs), atol=1e-5)
