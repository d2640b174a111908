import itertools

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.gatings.top_2 import Top2
from lingvo_moe.nn.layer import EVALUATION, Context

SHAPES = [(1, 1, 2), (1, 7, 3), (2, 16, 4), (3, 40, 8), (2, 5, 16), (1, 6, 1), (2, 128, 32)]


def seeded(seed):
    return Context(tf.constant([seed, 0]))


def draws(context, groups, tokens):
    return context.uniform([groups, tokens]).numpy()


def algorithm_1(logits, mask, capacity, random):
    """GShard's Algorithm 1 on one group, token by token.

    Args:
        logits: [S, E].
        mask: bool [S].
        capacity: C.
        random: [S], the draws of the second pass; zeros dispatch every second choice.

    Returns:
        A dict {(token, expert): (position, weight)} of what was dispatched, the loss times E², the
        first choices of each expert, and how many choices found no room.
    """
    tokens, experts = logits.shape
    gates = [np.exp(row - max(row)) / sum(np.exp(row - max(row))) for row in logits.astype(float)]
    real = [s for s in range(tokens) if mask[s]]
    mean_gates = [sum(gates[s][e] for s in real) / max(len(real), 1) for e in range(experts)]
    best = {s: sorted(range(experts), key=lambda e: (-gates[s][e], e))[:2] for s in real}
    total = {s: sum(gates[s][e] for e in best[s]) for s in real}
    count, dispatched, dropped = [0] * experts, {}, 0

    for s in real:
        e = best[s][0]
        if count[e] < capacity:
            dispatched[s, e] = (count[e], gates[s][e] / total[s])
        else:
            dropped += 1
        count[e] += 1

    first_choices = list(count)
    loss = (
        sum(first_choices[e] / max(len(real), 1) * mean_gates[e] for e in range(experts)) / experts
    )

    for s in real:
        if experts > 1:
            e = best[s][1]
            weight = gates[s][e] / total[s]
            if 2 * weight > random[s]:
                if count[e] < capacity:
                    dispatched[s, e] = (count[e], weight)
                else:
                    dropped += 1
            count[e] += 1
    return dispatched, loss * experts**2, first_choices, dropped


def assert_equals_algorithm_1(routing, logits, mask, capacity, random):
    capacity = logits.shape[1] * 2 if capacity is None else capacity
    losses, firsts, dropped, taken = [], np.zeros(logits.shape[2]), 0, 0
    for g in range(logits.shape[0]):
        expected, loss, first_choices, group_dropped = algorithm_1(
            logits[g], mask[g], capacity, random[g]
        )
        actual = {
            (s, int(routing.expert[g, s, k])): (
                int(routing.position[g, s, k]),
                float(routing.weight[g, s, k]),
            )
            for s, k in np.argwhere(routing.dispatched[g])
        }
        assert actual.keys() == expected.keys()
        for key, (position, weight) in expected.items():
            assert actual[key] == (position, pytest.approx(weight, rel=1e-5))
        losses += [loss] * bool(mask[g].any())
        firsts += first_choices
        dropped += group_dropped
        taken += len(expected)
    np.testing.assert_array_equal(np.array(routing.weight)[~np.array(routing.dispatched)], 0.0)
    assert float(routing.aux_loss) == pytest.approx(np.mean(losses or [0.0]), rel=1e-5)
    np.testing.assert_allclose(routing.stats.load, firsts / max(firsts.sum(), 1), rtol=1e-6)
    rate = dropped / max(dropped + taken, 1)
    assert float(routing.stats.drop_rate) == pytest.approx(rate, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "capacity", "padding"),
    itertools.product(SHAPES, [1, None], [0.3]),
)
def test_equals_algorithm_1(shape, capacity, padding):
    rng = np.random.default_rng([*shape, capacity or 0, int(10 * padding)])
    logits = rng.normal(0, 2, shape).astype(np.float32)
    mask = rng.random(shape[:2]) >= padding
    training = seeded(5)
    for context, random in [
        (training, draws(training, *shape[:2])),
        (EVALUATION, np.zeros(shape[:2])),
    ]:
        routing = Top2().route(tf.constant(logits), tf.constant(mask), capacity, context)
        assert_equals_algorithm_1(routing, logits, mask, capacity, random)


@pytest.mark.parametrize("capacity", [1, 4, None])
def test_equals_algorithm_1_with_ties(capacity):
    # Logits 0, 1, 2 over 6 experts: nearly every token has ties, which go to the lowest expert.
    rng = np.random.default_rng(2)
    logits = rng.integers(0, 3, [4, 30, 6]).astype(np.float32)
    mask = rng.random([4, 30]) > 0.1
    routing = Top2().route(tf.constant(logits), tf.constant(mask), capacity, EVALUATION)
    assert_equals_algorithm_1(routing, logits, mask, capacity, np.zeros([4, 30]))


def test_a_group_of_padding_takes_no_place_and_counts_nowhere():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, [3, 8, 4]).astype(np.float32)
    mask = np.array([[True] * 8, [False] * 8, [True] * 4 + [False] * 4])
    routing = Top2().route(tf.constant(logits), tf.constant(mask), 2, EVALUATION)
    assert_equals_algorithm_1(routing, logits, mask, 2, np.zeros([3, 8]))
    nothing = Top2().route(tf.constant(logits), tf.zeros([3, 8], tf.bool), 2, EVALUATION)
    assert not np.any(nothing.dispatched)
    assert (nothing.aux_loss.numpy(), nothing.stats.drop_rate.numpy()) == (0.0, 0.0)
    np.testing.assert_array_equal(nothing.stats.load, [0.0] * 4)


def test_queues_by_hand():
    # Three tokens prefer expert 0, then 1; the fourth prefers 1, then 0. Capacity 2.
    # First pass: tokens 0, 1, 2 queue at expert 0 in places 0, 1, 2 (the last does not fit), token
    # 3 at expert 1 in place 0. Second pass: tokens 0, 1, 2 get places 1, 2, 3 at expert 1, token 3
    # place 3 at expert 0, behind the choice that did not fit.
    big, small = np.log(0.75), np.log(0.25)
    logits = tf.constant([[[big, small]] * 3 + [[small, big]]], tf.float32)
    routing = Top2().route(logits, tf.ones([1, 4], tf.bool), 2, EVALUATION)
    assert routing.expert.numpy().tolist() == [[[0, 1], [0, 1], [0, 1], [1, 0]]]
    assert routing.position.numpy().tolist() == [[[0, 1], [1, 2], [2, 3], [0, 3]]]
    assert routing.dispatched.numpy().tolist() == [
        [[True, True], [True, False], [False, False], [True, False]]
    ]
    # Survivors keep their weights: 0.75 stays 0.75 where the second choice found no room.
    np.testing.assert_allclose(
        routing.weight, [[[0.75, 0.25], [0.75, 0], [0, 0], [0.75, 0]]], rtol=1e-6
    )
    assert routing.stats.drop_rate.numpy() == 0.5  # 4 of 8
    np.testing.assert_allclose(routing.stats.load, [0.75, 0.25])


def test_aux_loss_averages_over_groups():
    collapsed = 100.0 * tf.one_hot(tf.zeros([1, 4], tf.int32), 4)
    logits = tf.concat([collapsed, 100.0 * tf.eye(4)[None]], axis=0)
    routing = Top2().route(logits, tf.ones([2, 4], tf.bool), None, EVALUATION)
    assert routing.aux_loss.numpy() == pytest.approx((4.0 + 1.0) / 2, abs=1e-6)


@pytest.mark.parametrize("second_weight", [0.05, 0.2, 0.35, 0.5])
def test_the_second_expert_is_taken_in_proportion_to_its_weight(second_weight):
    # 32768 draws know a frequency to within 0.003 (standard deviation); E 3, the third gate tiny.
    gates = tf.constant([1 - second_weight, second_weight, 1e-9])
    logits = tf.broadcast_to(tf.math.log(gates), [32, 1024, 3])
    routing = Top2().route(logits, tf.ones([32, 1024], tf.bool), None, seeded(9))
    taken = tf.cast(routing.dispatched, tf.float32).numpy()
    assert np.all(taken[..., 0] == 1.0)
    assert taken[..., 1].mean() == pytest.approx(min(1.0, 2 * second_weight), abs=0.012)
    # Weights are not rescaled, and a choice that is not taken still has a position in the queue.
    np.testing.assert_allclose(routing.weight[..., 0], 1 - second_weight, rtol=1e-5)
    np.testing.assert_array_equal(routing.position[0, :, 1], np.arange(1024))


def test_random_routing_is_the_seeds():
    logits = tf.random.stateless_normal([2, 64, 4], [1, 2])
    mask = tf.ones([2, 64], tf.bool)
    one, again, other = (Top2().route(logits, mask, 16, seeded(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.dispatched, again.dispatched)
    assert np.any(one.dispatched.numpy() != other.dispatched.numpy())


def test_evaluation_is_never_random():
    logits = tf.random.stateless_normal([2, 64, 4], [1, 2])
    mask = tf.ones([2, 64], tf.bool)
    assert np.all(Top2().route(logits, mask, None, EVALUATION).dispatched)


def test_routes_shapes_unknown_until_run():
    route = tf.function(
        lambda logits, mask: Top2().route(logits, mask, None, EVALUATION).weight,
        input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None], tf.bool)],
    )
    logits = tf.random.stateless_normal([2, 6, 4], [1, 2])
    mask = tf.ones([2, 6], tf.bool)
    expected = Top2().route(logits, mask, None, EVALUATION).weight
    np.testing.assert_allclose(route(logits, mask), expected, rtol=1e-6)
