"""Tests of rebuilt placements, and of the moves to them."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import EMPTY, Expand, Migrate, Placement, Replace
from lingvo_moe.flexmoe.rebuild import find_moves, rebuild_placement, slot_costs
from lingvo_moe.testing.placements import make_cost, random_placement


def _free(devices):
    return make_cost(devices, token_bytes=0.0, gradient_bytes=0.0)


def test_by_hand():
    # Loads 90, 30, 20, 20 on six slots: the two that are free go to expert 0, 30 a slot. Each
    # device may be filled to 80 tokens and 2 %, so all can stay: 30 + 30 + 20 on either.
    start = Placement([[0, 0, 2], [0, 1, 3]], 4)
    assert rebuild_placement(_free(2), np.array([[45, 15, 10, 10]] * 2), start) == start
    # Where device 1 has no slot of expert 0, the third goes there, for device 0 has no room.
    other = Placement([[0, 0, 2], [3, 1, 3]], 4)
    after = rebuild_placement(_free(2), np.array([[45, 15, 10, 10]] * 2), other)
    assert after.slots.tolist() == [[0, 0, 2], [3, 1, 0]]


def test_costs_of_slots_by_hand():
    # Two devices on two nodes, 10 bytes/s between them, an expert of 900 tokens of 1 byte. One
    # slot: 9 s, and half of the tokens come from the other device: 450 · 4 / 10. Two: 4.5 s each,
    # nothing travels, synchronising takes 8 · 2.0 / 2. A third shares a device with another: 3 s.
    cost = make_cost(2, 1)
    np.testing.assert_allclose(slot_costs(cost, np.array([900]), 3), [[9 + 180, 4.5 + 8, 3 + 8]])


def test_skewed_loads_come_out_level():
    start, ratios, kept = Placement.even(8, 4, 16), [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        loads = rng.multinomial(4000, rng.dirichlet(np.full(16, 0.5)), 8)
        after = rebuild_placement(_free(8), loads, start)
        ratios.append(balance_ratio(device_tokens(loads, after)))
        # A balanced placement changes little.
        kept.append(np.mean(rebuild_placement(_free(8), loads, after).slots == after.slots))
    assert max(ratios) < 1.15
    assert np.mean(ratios) < 1.07
    assert np.mean(kept) > 0.7


@pytest.mark.parametrize("seed", range(30))
def test_the_path_leads_there(seed):
    rng = np.random.default_rng(seed)
    before = random_placement(rng)
    size, experts = before.slots.size, before.num_experts
    table = np.concatenate([np.arange(experts), rng.integers(0, experts, size - experts)])
    after = Placement(rng.permutation(table).reshape(before.slots.shape), experts)
    placement = before
    moves = find_moves(before, after)
    for move in moves:
        placement = move.apply(placement)  # raises if an expert lost its last slot
    assert placement == after
    assert len(moves) <= np.count_nonzero(before.slots != after.slots)


def test_paths_by_hand():
    # With full tables only swaps are possible.
    assert find_moves(Placement([[0], [1]], 2), Placement([[1], [0]], 2)) == (Migrate(0, 1),)
    start = Placement([[0, EMPTY], [1, 1]], 2)
    assert find_moves(start, Placement([[0, 1], [1, 0]], 2)) == (Expand(1, 1), Replace(0, 3))
