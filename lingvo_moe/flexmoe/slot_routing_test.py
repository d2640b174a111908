"""Slots of experts, against choices that are placed one after the other."""

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.slot_routing import choose_slots, flow_of
from lingvo_moe.testing.device_flow import device_flow
from lingvo_moe.testing.placements import random_placement


def random_experts(rng, placement, places, tokens):
    """Choices of each source at each place, skewed; -1 for none."""
    share = rng.dirichlet(np.full(placement.num_experts, 0.3))
    shape = (places, placement.num_devices, tokens)
    experts = rng.choice(placement.num_experts, shape, p=share)
    return np.where(rng.random(shape) < 0.1, -1, experts).astype(np.int32)


def loads_of(experts, num_experts):
    return np.stack([np.bincount(row[row >= 0], minlength=num_experts) for row in experts])


def one_by_one(experts, placement):
    """The slot of each choice [D, N]; P for none.

    Of a source's choices of an expert the first stay, the next go to the lowest device that takes
    some, and so on; there to the first slot of the expert.
    """
    left = device_flow(loads_of(experts, placement.num_experts), placement.counts())  # [E, D, H]
    slot = np.full_like(experts, placement.slots.size)
    for source, row in enumerate(experts):
        for token in np.flatnonzero(row >= 0):
            takers = left[row[token], source]
            device = source if takers[source] else int(np.flatnonzero(takers)[0])
            takers[device] -= 1
            first = int(np.flatnonzero(placement.slots[device] == row[token])[0])
            slot[source, token] = device * placement.slots_per_device + first
    return slot


@pytest.mark.parametrize("seed", range(12))
def test_slots_are_those_of_one_choice_after_the_other(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    table, sources = tf.constant(placement.slots), tf.range(placement.num_devices)
    for experts in random_experts(rng, placement, places=2, tokens=int(rng.integers(1, 40))):
        sent = flow_of(tf.constant(loads_of(experts, placement.num_experts))[None], table)
        slot = choose_slots(tf.constant(experts), sources, sent[0], table)
        np.testing.assert_array_equal(slot, one_by_one(experts, placement))


def test_places_flow_each_by_itself():
    rng = np.random.default_rng(7)
    placement = random_placement(rng)
    loads = rng.integers(0, 50, (3, placement.num_devices, placement.num_experts))
    sent = flow_of(tf.constant(loads), tf.constant(placement.slots))
    for place in range(3):
        expected = device_flow(loads[place], placement.counts())
        np.testing.assert_array_equal(sent[place], expected.transpose(1, 0, 2))


def test_devices_share_evenly():
    """No device gets more of an expert than ceil(tokens / slots) for each slot, and all arrive."""
    rng = np.random.default_rng(99)
    placement = random_placement(rng)
    loads = rng.integers(0, 50, (1, placement.num_devices, placement.num_experts))
    got = flow_of(tf.constant(loads), tf.constant(placement.slots)).numpy().sum(axis=(0, 1))
    total, slots = loads.sum(axis=(0, 1)), placement.counts()
    np.testing.assert_array_equal(got.sum(axis=1), total)
    assert np.all(got <= -(-total // slots.sum(axis=1))[:, None] * slots)


def test_large_counts_do_not_overflow():
    """Products of counts reach 1e13 here, past 32 bits."""
    placement = Placement([[0], [0], [1]], 2)
    loads = np.array([[[3_000_001, 5], [0, 1], [4_000_000, 0]]])
    expected = device_flow(loads[0], placement.counts()).transpose(1, 0, 2)
    np.testing.assert_array_equal(
        flow_of(tf.constant(loads), tf.constant(placement.slots))[0], expected
    )
