"""Slots of experts, against choices that are placed one after the other."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.slot_routing import choose_slots, counts_of, flow_of
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
    """The slot of each choice [D, N] and its place among its source's of that slot; -1 for none.

    Of a source's choices of an expert the first stay, the next go to the lowest device that takes
    some, and so on. The slots of a device take turns, the sources in their order.
    """
    left = device_flow(loads_of(experts, placement.num_experts), placement.counts())  # [E, D, H]
    slot, position = np.full_like(experts, -1), np.full_like(experts, -1)
    turns = collections.Counter()
    for source, row in enumerate(experts):
        taken = collections.Counter()
        for token in np.flatnonzero(row >= 0):
            takers = left[row[token], source]
            device = source if takers[source] else int(np.flatnonzero(takers)[0])
            takers[device] -= 1
            slots = np.flatnonzero(placement.slots[device] == row[token])
            turn = turns[row[token], device] % len(slots)
            slot[source, token] = device * placement.slots_per_device + slots[turn]
            position[source, token] = taken[slot[source, token]]
            turns[row[token], device] += 1
            taken[slot[source, token]] += 1
    return slot, position


def routed(experts, placement):
    """The same by the layer's functions; and the choices from each source to each slot."""
    counts = counts_of(tf.constant(placement.slots), placement.num_experts)
    flow = flow_of(tf.constant(loads_of(experts, placement.num_experts))[None], counts)
    sources = tf.range(placement.num_devices)
    chosen = choose_slots(tf.constant(experts), sources, flow.sent[0], flow.first[0], counts)
    none = placement.slots.size
    slot, position = (np.where(experts >= 0, x.numpy(), -1) for x in chosen)
    assert np.all(chosen[0].numpy()[experts < 0] == none)
    return slot, position, flow.by_slot.numpy()[:, 0].T


def test_slots_of_a_device_take_turns():
    # 5 tokens from device 0 and 4 from device 1 for the two slots of device 2: numbers 0 to 4 go
    # 0 1 0 1 0, numbers 5 to 8 go 1 0 1 0.
    placement = Placement([[1, 1], [1, 1], [0, 0]], 2)
    experts = np.array([[0, 0, -1, 0, 0, 0], [0, 0, 0, 0, -1, -1], [-1] * 6], np.int32)
    slot, position, by_slot = routed(experts, placement)
    assert slot.tolist() == [[4, 5, -1, 4, 5, 4], [5, 4, 5, 4, -1, -1], [-1] * 6]
    assert position.tolist()[0] == [0, 0, -1, 1, 1, 2]
    assert by_slot[:, 4:].tolist() == [[3, 2], [2, 2], [0, 0]]


@pytest.mark.parametrize("seed", range(12))
def test_slots_are_those_of_one_choice_after_the_other(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    for experts in random_experts(rng, placement, places=2, tokens=int(rng.integers(1, 40))):
        slot, position, by_slot = routed(experts, placement)
        expected, expected_position = one_by_one(experts, placement)
        np.testing.assert_array_equal(slot, expected)
        np.testing.assert_array_equal(position, expected_position)
        for source, row in enumerate(expected):
            counted = np.bincount(row[row >= 0], minlength=placement.slots.size)
            np.testing.assert_array_equal(by_slot[source], counted)


def test_places_flow_each_by_itself():
    rng = np.random.default_rng(7)
    placement = random_placement(rng)
    loads = rng.integers(0, 50, (3, placement.num_devices, placement.num_experts))
    counts = counts_of(tf.constant(placement.slots), placement.num_experts)
    np.testing.assert_array_equal(counts.replicas, placement.counts())
    sent = flow_of(tf.constant(loads), counts).sent
    for place in range(3):
        expected = device_flow(loads[place], placement.counts())
        np.testing.assert_array_equal(sent[place], expected.transpose(1, 0, 2))


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
