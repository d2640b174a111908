"""Tests of placements and moves: by hand, error texts, and any sequence of moves."""

import numpy as np
import pytest

from lingvo_moe.placement.placement import (
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
    assert hash(start) == hash(Placement([[0, 0], [1, 2]], 3))


@pytest.mark.parametrize(
    ("move", "text"),
    [
        (Shrink(2), r"Shrink\(slot=2\): it is the last of expert 1, which must keep one"),
        (Shrink(4), r"No slot 4: slots are 0 to 3"),
        (Expand(1, 0), r"the slot holds expert 0; shrink it first"),
        (Replace(1, 2), r"it is the last of expert 1"),
        (Migrate(0, 1), r"both slots hold expert 0; there is nothing to swap"),
    ],
)
def test_invalid_moves(move, text):
    with pytest.raises(ValueError, match=text):
        move.apply(Placement([[0, 0], [1, 2]], 3))


def test_invalid_on_an_empty_slot():
    placement = Placement([[0, EMPTY], [1, 2]], 3)
    with pytest.raises(ValueError, match="the slot is empty already"):
        Shrink(1).apply(placement)
    with pytest.raises(ValueError, match="experts are 0 to 2"):
        Expand(3, 1).apply(placement)


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        ([[0, 1], [1, 1]], "Expert 2 has no slot: every expert keeps at least one"),
        ([[0, 1], [2, 3]], "holds expert 3; experts are 0 to 2, and -1 marks an empty slot"),
        ([[0, 1], [2, -2]], "holds expert -2"),
        ([0, 1, 2], r"slots must be \[devices, slots per device\], got \(3,\)"),
    ],
)
def test_invalid_placements(slots, text):
    with pytest.raises(ValueError, match=text):
        Placement(slots, 3)


def test_a_placement_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        Placement.even(2, 2, 2).slots[0, 0] = 1


@pytest.mark.parametrize("seed", range(40))
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
        changed = np.flatnonzero(after.slots != placement.slots)
        assert set(changed) <= set(move.touched)
        placement = after
    assert valid or start.slots.size <= 2 or start.num_experts == 1
    # One gather by the relocation puts the right expert into every slot.
    bandwidth = np.ones((start.num_devices,) * 2)
    contents = start.slots.ravel()[relocation(start, placement, bandwidth)]
    full = placement.slots != EMPTY
    assert np.array_equal(contents[full], placement.slots[full])


def test_relocation_takes_the_fastest_link_then_shares_the_work():
    # Devices 0, 1 on a node, 2, 3 on another. Expert 0 on devices 0 and 2 goes to 1 and 3: each
    # from its neighbour. Slots: device g holds slots 2g and 2g + 1.
    bandwidth = np.full((4, 4), 1.0)
    bandwidth[[0, 1, 2, 3], [1, 0, 3, 2]] = 10.0
    before = Placement([[0, 1], [2, 2], [0, 3], [3, 3]], 4)
    after = Placement([[0, 1], [2, 0], [0, 3], [0, 3]], 4)
    assert relocation(before, after, bandwidth).tolist() == [[0, 1], [2, 0], [4, 5], [4, 7]]
    # All links alike: the second copy comes from the other holder.
    assert relocation(before, after, np.ones((4, 4)))[[1, 3], [1, 0]].tolist() == [0, 4]


def test_relocation_between_different_shapes():
    with pytest.raises(ValueError, match=r"Cannot relocate from \(2, 2\) slots of 2 experts"):
        relocation(Placement.even(2, 2, 2), Placement.even(2, 1, 2), np.ones((2, 2)))
