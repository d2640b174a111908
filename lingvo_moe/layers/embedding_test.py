import numpy as np
import tensorflow as tf

from lingvo_moe.layers.embedding import Embedding
from lingvo_moe.nn.layer import Normal, init_theta
from lingvo_moe.nn.nested_map import NestedMap

TABLE = NestedMap(table=tf.constant([[1.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 3.0, 4.0]]))
LAYER = Embedding(vocab_size=3, model_dim=4)


def test_lookup_and_logits_share_the_table():
    np.testing.assert_array_equal(
        LAYER.lookup(TABLE, tf.constant([[2, 0]])), [[[0, 0, 3, 4], [1, 0, 0, 0]]]
    )
    # [1, 1, 1, 1] against each row, times 4^-1/2.
    logits = LAYER.logits(TABLE, tf.ones([1, 1, 4]))
    np.testing.assert_array_equal(logits, [[[0.5, 1.0, 3.5]]])


def test_scaled_vectors_and_plain_logits():
    layer = Embedding(vocab_size=3, model_dim=4, scaled=True)
    np.testing.assert_array_equal(layer.lookup(TABLE, tf.constant([1])), [[0, 4, 0, 0]])  # √4 = 2
    np.testing.assert_array_equal(layer.logits(TABLE, tf.ones([1, 1, 4])), [[[1, 2, 7]]])
    assert layer.weights().table.init == Normal(0.5)


def test_logits_are_float32():
    half = TABLE.map(lambda w: tf.cast(w, tf.bfloat16))
    assert LAYER.logits(half, tf.ones([1, 1, 4], tf.bfloat16)).dtype == tf.float32


def test_starts_normal():
    layer = Embedding(vocab_size=200, model_dim=100)
    table = init_theta(layer.weights(), 0).table
    np.testing.assert_allclose([np.mean(table), np.std(table)], [0, 1], atol=0.02)


def test_logits_of_decoding_are_those_of_the_pieces_in_use():
    embedding = Embedding(vocab_size=70, model_dim=4)
    theta = init_theta(embedding.weights(), 0)
    hidden = tf.random.stateless_normal([3, 4], [0, 1])
    laid_out = embedding.lay_out(theta, num_pieces=66)
    logits = embedding.step_logits(laid_out, hidden)
    assert logits.shape == [3, 128]  # the next multiple of 64
    expected = embedding.logits(theta, hidden[None])[0]
    np.testing.assert_allclose(logits[:, :66], expected[:, :66], rtol=1e-5)
    assert np.all(np.isneginf(logits[:, 66:]))
