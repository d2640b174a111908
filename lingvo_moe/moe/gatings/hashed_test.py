import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.base import Extras
from lingvo_moe.moe.gatings.hashed import Hash
from lingvo_moe.nn.layer import EVALUATION, Context
from lingvo_moe.testing import slow_routing

TRAINING = Context(tf.constant([1, 2]))
INT32_MAX = 2**31 - 1


def slow_hash(token_id, seed):
    """MurmurHash3's 32-bit finalizer in Python's unbounded integers, keyed twice."""
    x = token_id % 2**32
    for key in (seed % 2**32, 0x9E3779B9):
        x ^= key
        x ^= x >> 16
        x = x * 0x85EBCA6B % 2**32
        x ^= x >> 13
        x = x * 0xC2B2AE35 % 2**32
        x ^= x >> 16
    return x >> 1


def experts_of(ids, num_experts, seed=0):
    ids = tf.constant(ids, tf.int32)[None]
    logits = tf.zeros([1, ids.shape[1], num_experts])
    routing = Hash(seed=seed).route(
        logits, tf.ones_like(ids, tf.bool), None, EVALUATION, Extras(ids)
    )
    return routing.expert[0, :, 0].numpy()


@pytest.mark.parametrize("name", slow_routing.CASES)
@pytest.mark.parametrize("seed", [0, 7])
def test_equals_the_slow_loop(name, seed):
    logits, mask, capacity = slow_routing.case(name)
    ids = np.random.default_rng(1).integers(0, 20, mask.shape).astype(np.int32)
    if name == "one_expert_takes_all":
        ids[:] = 5
    routing = Hash(seed=seed).route(logits, mask, capacity, TRAINING, Extras(tf.constant(ids)))

    def expert(g, s):
        return [(slow_hash(int(ids[g, s]), seed) % logits.shape[-1], 1.0)]

    slow_routing.assert_routes(routing, expert, logits, mask, capacity)
    np.testing.assert_allclose(routing.aux_loss, 1.0, atol=1e-6)


@pytest.mark.parametrize("seed", [0, -1, INT32_MAX, -INT32_MAX - 1])
def test_any_id_and_seed_are_hashed(seed):
    ids = [0, 1, 65535, 65536, INT32_MAX - 1, INT32_MAX, -1]
    assert experts_of(ids, 128, seed).tolist() == [slow_hash(i, seed) % 128 for i in ids]


@pytest.mark.parametrize("num_experts", [2, 7, 128])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ids_spread_evenly(num_experts, seed):
    # Chi squared over E bins has mean E - 1 and variance 2(E - 1).
    counts = np.bincount(experts_of(range(32000), num_experts, seed), minlength=num_experts)
    expected = 32000 / num_experts
    chi2 = np.sum((counts - expected) ** 2 / expected)
    assert chi2 < num_experts - 1 + 5 * np.sqrt(2 * num_experts)


def test_seeds_are_unrelated_hashes():
    one, other = experts_of(range(32000), 8, 0), experts_of(range(32000), 8, 1)
    assert np.mean(one == other) == pytest.approx(1 / 8, abs=0.01)


def test_the_logits_do_not_matter_and_their_gradient_is_zero():
    ids, mask = tf.range(12)[None], tf.ones([1, 12], tf.bool)
    logits = tf.random.stateless_normal([1, 12, 4], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        routing = Hash().route(logits, mask, None, TRAINING, Extras(ids))
    np.testing.assert_array_equal(tape.gradient(routing.aux_loss, logits), np.zeros([1, 12, 4]))
    np.testing.assert_array_equal(routing.expert[0, :, 0], experts_of(range(12), 4))


def test_it_needs_token_ids():
    with pytest.raises(ValueError, match=r"got token_ids=None; pass them to fprop"):
        Hash().route(tf.zeros([1, 2, 4]), tf.ones([1, 2], tf.bool), None, TRAINING)
