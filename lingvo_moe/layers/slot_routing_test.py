"""Held against the loops of placement/routing_test.py, which has tests of their own."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.layers.slot_routing import choose_slots, counts_of, flow_of
from lingvo_moe.placement.placement import Placement
from lingvo_moe.placement.placement_test import random_placement
from lingvo_moe.placement.routing import device_flow
from lingvo_moe.placement.routing_test import route_tokens, slot_flow


def random_experts(rng, placement, places, tokens):
    """Choices of each source at each place, skewed; -1 for none."""
    share = rng.dirichlet(np.full(placement.num_experts, 0.3))
    shape = (places, placement.num_devices, tokens)
    experts = rng.choice(placement.num_experts, shape, p=share)
    return np.where(rng.random(shape) < 0.1, -1, experts).astype(np.int32)


def loads_of(experts, num_experts):
    return np.stack([np.bincount(row[row >= 0], minlength=num_experts) for row in experts])


@pytest.mark.parametrize("seed", range(12))
def test_flows_and_slots_are_the_reference(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    experts = random_experts(rng, placement, places=2, tokens=int(rng.integers(1, 40)))
    loads = np.stack([loads_of(place, placement.num_experts) for place in experts])
    counts = counts_of(tf.constant(placement.slots), placement.num_experts)
    np.testing.assert_array_equal(counts.replicas, placement.counts())
    flow = flow_of(tf.constant(loads), counts)
    for place in range(2):
        expected = device_flow(loads[place], placement.counts())
        np.testing.assert_array_equal(flow.sent[place], expected.transpose(1, 0, 2))
        by_slot = slot_flow(loads[place], placement)  # [D, H, K]
        np.testing.assert_array_equal(
            flow.by_slot[:, place], by_slot.reshape(len(by_slot), -1).transpose()
        )
        slot, position = choose_slots(
            tf.constant(experts[place]),
            tf.range(placement.num_devices),
            flow.sent[place],
            flow.first[place],
            counts,
        )
        routed = route_tokens(experts[place], placement)
        real = experts[place] >= 0
        np.testing.assert_array_equal(slot.numpy()[real], routed.slot[real])
        np.testing.assert_array_equal(position.numpy()[real], routed.position[real])
        assert (slot.numpy()[~real] == placement.slots.size).all()


def test_slots_share_evenly():
    """No slot gets more than ceil(tokens / slots) of its expert's tokens, and all arrive."""
    rng = np.random.default_rng(99)
    placement = random_placement(rng)
    loads = rng.integers(0, 50, (1, placement.num_devices, placement.num_experts))
    counts = counts_of(tf.constant(placement.slots), placement.num_experts)
    got = flow_of(tf.constant(loads), counts).by_slot.numpy().sum(axis=(1, 2))
    total, slots = loads.sum(axis=(0, 1)), placement.counts().sum(axis=1)
    assert got.sum() == total.sum()
    for tokens, expert in zip(got, placement.slots.ravel(), strict=True):
        assert tokens <= (-(-total[expert] // slots[expert]) if expert >= 0 else 0)


def test_large_counts_do_not_overflow():
    """Products of counts reach 1e13 here, past 32 bits."""
    placement = Placement([[0], [0], [1]], 2)
    loads = np.array([[[3_000_001, 5], [0, 1], [4_000_000, 0]]])
    counts = counts_of(tf.constant(placement.slots), 2)
    expected = device_flow(loads[0], placement.counts()).transpose(1, 0, 2)
    np.testing.assert_array_equal(flow_of(tf.constant(loads), counts).sent[0], expected)
