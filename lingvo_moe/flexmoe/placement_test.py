"""Tests of placements and moves: by hand, error texts, and any sequence of moves."""

import numpy as np
import pytest

from lingvo_moe.flexmoe.placement import (
    EMPTY,
    Expand,
    Migrate,
    Placement,
    Replace,
    Shrink,
    relocation,
)
from lingvo_moe.testing.placements import random_move, random_placement


def test_even_by_hand():
    # 8 slots, 4 experts: two each, side by side. 6 slots, 4 experts: 0 0 1 2 2 3.
    assert Placement.even(4, 2, 4).slots.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert Placement.even(2, 3, 4).slots.tolist() == [[0, 0, 1], [2, 2, 3]]
    assert Placement.even(2, 3, 4).counts().tolist() == [[2, 0], [1, 0], [0, 2], [0, 1]]


def test_moves_by_hand():
    start = Placement([[0, 0], [1, 2]], 3)
    shrunk = Shrink(1).apply(start)
    assert shrunk.slots.tolist() == [[0, EMPTY], [1, 2]]
    assert Expand(2, 1).apply(shrunk).slots.tolist() == [[0, 2], [1, 2]]
    assert Replace(2, 1).apply(start) == Expand(2, 1).apply(shrunk)
    assert Migrate(0, 3).apply(start).slots.tolist() == [[2, 0], [1, 0]]
    assert start.slots.tolist() == [[0, 0], [1, 2]]  # never changed


@pytest.mark.parametrize("move", [Shrink(2), Expand(1, 0), Replace(1, 2), Migrate(0, 1), Shrink(4)])
def test_invalid_moves(move):
    with pytest.raises(ValueError, match=r"slot"):
        move.apply(Placement([[0, 0], [1, 2], [EMPTY, EMPTY]], 3))


@pytest.mark.parametrize("slots", [[[0, 1], [1, 1]], [[0, 1], [2, 3]], [0, 1, 2]])
def test_invalid_placements(slots):
    with pytest.raises(ValueError, match="every expert"):
        Placement(slots, 3)


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_keeps_every_expert_and_every_slot(seed):
    rng = np.random.default_rng(seed)
    start = random_placement(rng)
    placement, valid = start, 0
    for _ in range(60):
        move = random_move(rng, placement)
        try:
            after = move.apply(placement)
        except ValueError:
            continue
        valid += 1
        held = np.bincount(after.slots[after.slots != EMPTY], minlength=start.num_experts)
        assert held.min() >= 1
        assert after.slots.shape == start.slots.shape
        assert after.counts().sum() == held.sum() <= start.slots.size
        assert np.count_nonzero(after.slots != placement.slots) <= 1 + isinstance(move, Migrate)
        placement = after
    assert valid or start.slots.size <= 2 or start.num_experts == 1
    # One gather by the relocation puts the right expert into every slot.
    contents = np.append(start.slots, EMPTY)[relocation(start, placement)]
    assert np.array_equal(contents, placement.slots)


def test_a_new_replica_comes_from_its_device_or_the_first_old_one():
    before = Placement([[0, 1], [2, 2], [0, 3], [3, 3]], 4)
    after = Placement([[0, 1], [2, 0], [3, 0], [EMPTY, 2]], 4)
    assert relocation(before, after).tolist() == [[0, 1], [2, 0], [5, 4], [-1, 2]]
