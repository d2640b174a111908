"""Tests of flexible routing: by hand, its rules as properties, token by token against counts."""

from typing import NamedTuple

import numpy as np
import pytest

from lingvo_moe.placement.placement import Placement
from lingvo_moe.placement.placement_test import random_placement
from lingvo_moe.placement.routing import device_flow


class Routed(NamedTuple):
    """Where each choice goes.

    Attributes:
        slot: int64 [D, N], number of the slot, -1 for padding.
        position: int64 [D, N], the choice's place among its source's choices of that slot, from 0.
    """

    slot: np.ndarray
    position: np.ndarray


def slot_flow(loads: np.ndarray, placement: Placement) -> np.ndarray:
    """Tokens from each source to each slot: all rules.

    Args:
        loads: int [D, E], choices of each expert on each source.
        placement: D devices, E experts.

    Returns:
        int64 [D, H, K]; the largest number is the capacity that a buffer per source and slot needs.

    Raises:
        ValueError: as device_flow.
    """
    counts = placement.counts()
    flow = device_flow(loads, counts)  # [E, D, H]
    first = np.cumsum(flow, axis=1) - flow  # the number of a source's first token on the target
    turn = _turns(placement)  # [H, K]
    result = np.zeros((flow.shape[1], *placement.slots.shape), np.int64)
    for device, place in np.argwhere(turn >= 0):
        expert = placement.slots[device, place]
        of, mine = counts[expert, device], turn[device, place]
        begin = first[expert, :, device]
        end = begin + flow[expert, :, device]
        # Numbers q below x with q mod `of` = `mine` are (x - mine + of - 1) // of many.
        result[:, device, place] = (end - mine + of - 1) // of - (begin - mine + of - 1) // of
    return result


def route_tokens(experts: np.ndarray, placement: Placement) -> Routed:
    """The slot of each single choice; counts agree with slot_flow.

    Of a source's tokens for an expert the first stay, the next go to the lowest device that takes
    some, and so on.

    Args:
        experts: int [D, N], the chosen expert, -1 for padding.
        placement: D devices.
    """
    loads = np.stack(
        [np.bincount(row[row >= 0], minlength=placement.num_experts) for row in experts]
    )
    counts, per_device = placement.counts(), placement.slots_per_device
    flow = device_flow(loads, counts)
    first = np.cumsum(flow, axis=1) - flow
    slot = np.full(experts.shape, -1, np.int64)
    position = np.full(experts.shape, -1, np.int64)
    for source, row in enumerate(experts):
        for expert in np.unique(row[row >= 0]):
            where = np.flatnonzero(row == expert)
            order = [source, *(h for h in range(len(experts)) if h != source)]
            sent = flow[expert, source, order]
            device = np.repeat(order, sent)
            number = np.arange(len(where)) - np.repeat(np.cumsum(sent) - sent, sent)
            turn = (first[expert, source, device] + number) % counts[expert, device]
            for token, target, n in zip(where, device, turn, strict=True):
                place = np.flatnonzero(placement.slots[target] == expert)[n]
                slot[source, token] = target * per_device + place
        taken: dict[int, int] = {}
        for token in np.flatnonzero(row >= 0):
            position[source, token] = taken.get(slot[source, token], 0)
            taken[slot[source, token]] = position[source, token] + 1
    return Routed(slot, position)


def _turns(placement: Placement) -> np.ndarray:
    """[D, K], how many slots of the same expert come before on the device; -1 where empty."""
    slots = placement.slots
    same = slots[:, :, None] == slots[:, None, :]
    before = np.tril(same, k=-1).sum(axis=2)
    return np.where(slots < 0, -1, before)


def test_by_hand():
    # One expert of interest, 0: 12 tokens, all of device 0; slots: one on each of devices 0, 1, 2.
    # cap 4: four stay, eight go over spare rooms of 4 and 4.
    placement = Placement([[0, 1], [0, 1], [0, 1]], 2)
    loads = np.array([[12, 0], [0, 0], [0, 0]])
    flow = device_flow(loads, placement.counts())
    assert flow[0].tolist() == [[4, 4, 4], [0, 0, 0], [0, 0, 0]]
    # 7, 2, 0: cap 3; three of seven stay, both of device 1 stay; spare 1 and 3 for the rest of 4.
    flow = device_flow(np.array([[7, 0], [2, 0], [0, 0]]), placement.counts())
    assert flow[0].tolist() == [[3, 1, 3], [0, 2, 0], [0, 0, 0]]


def test_the_rest_is_spread_in_proportion_from_every_source():
    # Sources 0 and 1 have 60 and 30 tokens of expert 0, which lives on devices 2 and 3 with two
    # slots and one: cap 30. Device 2 gets two thirds of each source.
    placement = Placement([[1, 1], [1, 1], [0, 0], [0, 1]], 2)
    loads = np.array([[60, 0], [30, 0], [0, 0], [0, 0]])
    flow = device_flow(loads, placement.counts())
    assert flow[0, :2].tolist() == [[0, 0, 40, 20], [0, 0, 20, 10]]


def test_what_rounding_leaves_is_laid_evenly_over_the_room():
    # 13 tokens on five slots: cap 3. Two of device 0's five must go; the others have room for one
    # each, so floor(2 · 1 / 4) = 0. Of these four places the two take the first and the third.
    placement = Placement([[0], [0], [0], [0], [0]], 1)
    flow = device_flow(np.array([[5], [2], [2], [2], [2]]), placement.counts())
    assert flow[0, 0].tolist() == [3, 1, 0, 1, 0]


def test_slots_of_a_device_take_turns():
    # 5 tokens from device 0 and 4 from device 1 for the two slots of device 2: numbers 0 to 4 go
    # 0 1 0 1 0, numbers 5 to 8 go 1 0 1 0.
    placement = Placement([[1, 1], [1, 1], [0, 0]], 2)
    loads = np.array([[5, 0], [4, 0], [0, 0]])
    flow = slot_flow(loads, placement)
    assert flow[:, 2].tolist() == [[3, 2], [2, 2], [0, 0]]
    routed = route_tokens(
        np.array([[0, 0, -1, 0, 0, 0], [0, 0, 0, 0, -1, -1], [-1] * 6]), placement
    )
    assert routed.slot.tolist()[0] == [4, 5, -1, 4, 5, 4]
    assert routed.slot.tolist()[1] == [5, 4, 5, 4, -1, -1]
    assert routed.position.tolist()[0] == [0, 0, -1, 1, 1, 2]


def random_loads(rng, placement, most=60):
    """Skewed, with experts and devices that have none."""
    scale = rng.integers(0, most, placement.num_experts) * rng.integers(
        0, 2, (placement.num_devices, placement.num_experts)
    )
    return rng.poisson(scale)


@pytest.mark.parametrize("seed", range(60))
def test_rules(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    loads = random_loads(rng, placement, int(rng.choice([3, 60, 5000])))
    counts = placement.counts()
    flow, slots = device_flow(loads, counts), slot_flow(loads, placement)
    # Nothing is lost, nothing goes where the expert is not.
    assert flow.min(initial=0) >= 0
    assert np.array_equal(flow.sum(axis=2), loads.T)
    assert not flow.sum(axis=1)[counts == 0].any()
    # No slot takes more than the cap, rounded up.
    cap = -(-loads.sum(axis=0) // counts.sum(axis=1))
    full = placement.slots >= 0
    assert np.all(slots.sum(axis=0)[full] <= cap[placement.slots[full]])
    assert not slots[:, ~full].any()
    # Local first: what stays is all that there is, or all that there is room for.
    devices = np.arange(placement.num_devices)
    kept = flow[:, devices, devices]
    assert np.array_equal(kept, np.minimum(loads.T, cap[:, None] * counts))
    # Slots add up to devices, expert by expert.
    for expert in range(placement.num_experts):
        mine = np.where(placement.slots == expert, slots, 0).sum(axis=2)
        assert np.array_equal(mine, flow[expert])
    # A device's slots of one expert differ by one token at most.
    for device in devices:
        for expert in np.unique(placement.slots[device][full[device]]):
            each = slots[:, device, placement.slots[device] == expert].sum(axis=0)
            assert np.ptp(each) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_close_to_proportion(seed):
    # Rounding moves fewer tokens of a pair than there are devices.
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    loads, counts = random_loads(rng, placement, 5000), placement.counts()
    for expert, flow in enumerate(device_flow(loads, counts)):
        tokens = loads[:, expert]
        room = counts[expert] * -(-tokens.sum() // counts[expert].sum())
        rest, spare = np.maximum(tokens - room, 0), np.maximum(room - tokens, 0)
        exact = np.outer(rest, spare) / max(spare.sum(), 1)
        np.fill_diagonal(exact, np.minimum(tokens, room))
        assert np.abs(flow - exact).max() < placement.num_devices


@pytest.mark.parametrize("seed", range(20))
def test_single_tokens_agree_with_counts(seed):
    rng = np.random.default_rng(seed)
    placement = random_placement(rng)
    experts = rng.integers(-1, placement.num_experts, (placement.num_devices, 37)) // 2
    routed = route_tokens(experts, placement)
    assert np.array_equal(routed.slot >= 0, experts >= 0)
    taken = experts >= 0
    assert np.array_equal(placement.slots.flat[routed.slot[taken]], experts[taken])
    loads = np.stack([np.bincount(e[e >= 0], minlength=placement.num_experts) for e in experts])
    flow = slot_flow(loads, placement).reshape(placement.num_devices, -1)
    for source in range(placement.num_devices):
        slot, position = routed.slot[source], routed.position[source]
        assert np.array_equal(np.bincount(slot[slot >= 0], minlength=flow.shape[1]), flow[source])
        for one in np.unique(slot[slot >= 0]):
            assert position[slot == one].tolist() == list(range(flow[source, one]))


def test_capacity_that_suffices_for_experts_drops_nothing():
    # With C rows a slot and enough slots for each expert (n · C >= load) nothing overflows.
    for seed in range(40):
        rng = np.random.default_rng(seed)
        placement = random_placement(rng)
        loads = random_loads(rng, placement)
        capacity = int(np.ceil((loads.sum(axis=0) / placement.counts().sum(axis=1)).max()))
        dropped = np.maximum(slot_flow(loads, placement).sum(axis=0) - capacity, 0)
        assert dropped.sum() == 0


def test_large_numbers():
    # 3 million tokens: products pass 2³¹ by far.
    flow = device_flow(np.array([[3_000_000], [0], [0]]), np.array([[0, 2, 1]]))
    assert flow[0, 0].tolist() == [0, 2_000_000, 1_000_000]


@pytest.mark.parametrize(
    ("loads", "counts", "text"),
    [
        (np.zeros((2, 3), int), np.ones((2, 2), int), r"= \(2, 3\), but the placement has 2 dev"),
        (np.full((2, 2), 0.5), np.ones((2, 2), int), "integers from 0 on; got float64"),
        (np.full((2, 2), -1), np.ones((2, 2), int), "integers from 0 on"),
        (np.ones((2, 2), int), np.array([[1, 1], [0, 0]]), "Expert 1 has 2 tokens and no slot"),
    ],
)
def test_errors(loads, counts, text):
    with pytest.raises(ValueError, match=text):
        device_flow(loads, counts)
