"""Which replica handles which token: FlexMoE's flexible routing, in exact integers.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 4 (flexible token routing). The gate has
chosen experts; here each choice finds a slot. With I tokens of an expert and n slots of it, no slot
takes more than ceil(I / n) and no token is left over:

1. A device keeps its own tokens up to the room of its own slots, n_here · ceil(I / n).
2. What it cannot keep goes to the expert's other devices in proportion to their spare room: first
   floor(rest · spare / all spare) to each; then the few tokens that rounding left, numbered through
   all sources, are laid evenly over the room that is still free.
3. On a device an expert's tokens, numbered by source, take its slots there in turn.

Everything is sums, products and comparisons of arrays of one shape, so it can be said in TensorFlow
word by word. Products reach tokens² and want 64 bits.

D devices as sources, H the same devices as targets, K slots of a device, E experts, N choices of a
source.
"""

from typing import NamedTuple

import numpy as np

from lingvo_moe.placement.placement import Placement


class Routed(NamedTuple):
    """Where each choice goes.

    Attributes:
        slot: int64 [D, N], number of the slot, -1 for padding.
        position: int64 [D, N], the choice's place among its source's choices of that slot, from 0.
    """

    slot: np.ndarray
    position: np.ndarray


def device_flow(loads: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Tokens of each expert from each source device to each target device: rules 1 and 2.

    Args:
        loads: int [D, E], choices of each expert on each source.
        counts: int [E, D], slots of each expert on each device; an expert with none must have no
            load.

    Returns:
        int64 [E, D, H]. Sums over H are the loads; sums over D are at most
        counts · ceil(load / slots).

    Raises:
        ValueError: shapes do not fit, a load is negative, or tokens have nowhere to go.
    """
    tokens = _checked(loads, counts).T.astype(np.int64)  # [E, D]
    total, replicas = tokens.sum(axis=1), counts.sum(axis=1)
    if np.any((replicas == 0) & (total > 0)):
        lost = int(np.flatnonzero((replicas == 0) & (total > 0))[0])
        raise ValueError(f"Expert {lost} has {total[lost]} tokens and no slot to take them.")
    limit = -(-total // np.maximum(replicas, 1))  # ceil(cap)
    room = limit[:, None] * counts
    kept = np.minimum(room, tokens)
    flow = _spread(tokens - kept, room - kept)
    devices = np.arange(tokens.shape[1])
    flow[:, devices, devices] += kept  # a device with tokens to spare has no room to spare
    return flow


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


def _checked(loads: np.ndarray, counts: np.ndarray) -> np.ndarray:
    loads = np.asarray(loads)
    if loads.shape != counts.shape[::-1]:
        raise ValueError(
            f"Loads are [devices, experts] = {loads.shape}, but the placement has "
            f"{counts.shape[1]} devices and {counts.shape[0]} experts."
        )
    if not np.issubdtype(loads.dtype, np.integer) or loads.min(initial=0) < 0:
        raise ValueError(f"Loads must be counts, integers from 0 on; got {loads.dtype}.")
    return loads


def _spread(rest: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """Rule 2: rest [E, D] tokens into spare [E, H] room, of which each expert has enough."""
    flow = rest[:, :, None] * spare[:, None, :] // _at_least_one(spare)[:, :, None]
    left, free = rest - flow.sum(axis=2), spare - flow.sum(axis=1)
    last_token = np.cumsum(left, axis=1)  # [E, D]
    # Token i lies on place floor(i · free / left) of the free room, so a device whose room ends at
    # place b ends at token ceil(b · left / free); it takes no more than its room, as left <= free.
    tokens_before = -(-np.cumsum(free, axis=1) * last_token[:, -1:] // _at_least_one(free))
    ends = np.minimum(last_token[:, :, None], tokens_before[:, None, :])
    begins = np.maximum(
        (last_token - left)[:, :, None],
        np.concatenate([np.zeros_like(free[:, :1]), tokens_before[:, :-1]], axis=1)[:, None, :],
    )
    return flow + np.maximum(ends - begins, 0)


def _at_least_one(room: np.ndarray) -> np.ndarray:
    return np.maximum(room.sum(axis=1, keepdims=True), 1)


def _turns(placement: Placement) -> np.ndarray:
    """[D, K], how many slots of the same expert come before on the device; -1 where empty."""
    slots = placement.slots
    same = slots[:, :, None] == slots[:, None, :]
    before = np.tril(same, k=-1).sum(axis=2)
    return np.where(slots < 0, -1, before)
