"""Computes a new placement if single moves do not help, and the moves that lead to it.

A greedy search stops if every single move makes a device busier. This module assigns all slots
again: first the number of each expert's slots, then their devices.

D devices, E experts.
"""

import heapq

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.placement import EMPTY, Expand, Migrate, Move, Placement, Replace

_SLACK = 1.02  # a slot stays on its device if the device's load is at most this times the mean


def rebuild_placement(cost: CostModel, loads: np.ndarray, placement: Placement) -> Placement:
    """Gives slots to the experts with the costliest slots, then assigns slots to idle devices.

    Slots are assigned in descending order of cost. A slot stays on its expert's current device, if
    that device has room for its cost.

    Args:
        cost: the cost model.
        loads: [D, E], tokens of each expert on each source device in a step.
        placement: the current one.

    Returns:
        A placement of the same shape without empty slots; every expert has at least one.
    """
    slots, devices = placement.slots.size, placement.num_devices
    costs = slot_costs(cost, loads.sum(axis=0), slots)  # [E, slots]
    replicas = np.ones(placement.num_experts, np.int64)
    hottest = [(-costs[e, 0], e) for e in range(placement.num_experts)]
    heapq.heapify(hottest)
    for _ in range(slots - placement.num_experts):
        expert = hottest[0][1]
        replicas[expert] += 1
        heapq.heapreplace(hottest, (-costs[expert, replicas[expert] - 1], expert))
    each = costs[np.arange(placement.num_experts), replicas - 1]
    limit = _SLACK * float(each @ replicas) / devices
    here = placement.counts()
    filled, room = np.zeros(devices), np.full(devices, placement.slots_per_device)
    lists: list[list[int]] = [[] for _ in range(devices)]
    for expert in np.argsort(-each, kind="stable").tolist():
        for _ in range(replicas[expert]):
            stays = (here[expert] > 0) & (room > 0) & (filled + each[expert] <= limit)
            among = stays if stays.any() else room > 0
            device = int(np.where(among, filled, np.inf).argmin())
            here[expert, device] -= 1
            filled[device] += each[expert]
            room[device] -= 1
            lists[device].append(expert)
    return _aligned(placement, lists)


def slot_costs(cost: CostModel, load: np.ndarray, most: int) -> np.ndarray:
    """[E, most], seconds of one slot of an expert that has 1, 2, … slots, each on its own device.

    It assumes that all sources have equally many tokens of an expert, that all links are equal, and
    that replicas are on as many nodes as possible.
    """
    devices = cost.num_devices
    number = np.arange(1, most + 1)
    spread = np.minimum(number, devices)
    within = np.arange(devices) % cost.wires.node
    order = np.argsort(within, kind="stable")  # the first device of each node, the second, …
    holds = np.zeros((devices, devices), np.int64)
    holds[:, order] = np.tril(np.ones_like(holds))
    sync = cost.sync_seconds(holds).max(axis=1)[spread - 1]
    far = cost.exchange_seconds_per_token() * (1 - spread / devices)
    fixed = cost.expert_seconds + sync
    return load[:, None] / number * (1 / cost.tokens_per_second + far) + fixed


def _aligned(placement: Placement, lists: list[list[int]]) -> Placement:
    """The experts of each device, in the order that changes the fewest slots."""
    table = np.full_like(placement.slots, EMPTY)
    for device, experts in enumerate(lists):
        left = list(experts)
        for place, old in enumerate(placement.slots[device].tolist()):
            if old in left:
                left.remove(old)
                table[device, place] = old
        table[device, table[device] == EMPTY] = left
    return Placement(table, placement.num_experts)


def find_moves(before: Placement, after: Placement) -> tuple[Move, ...]:
    """Moves from one placement to another; no expert is ever without a slot.

    Args:
        before: the current placement; slots may be empty.
        after: a placement of the same shape, without empty slots.

    Returns:
        The moves in the order in which they must be applied, at most one for each slot that
        differs.
    """
    now, moves = before, []
    replicas = np.append(now.counts().sum(axis=1), 2)  # the last is for EMPTY, which is always free
    wrong = set(np.flatnonzero(now.slots != after.slots).tolist())
    while wrong:
        slot = next((s for s in sorted(wrong) if replicas[now.slots.flat[s]] > 1), None)
        if slot is None:
            # Each wrong slot holds the last replica of its expert, which belongs into another slot.
            slot = min(wrong)
            other = next(s for s in sorted(wrong) if after.slots.flat[s] == now.slots.flat[slot])
            move: Move = Migrate(slot, other)
        else:
            old, new = int(now.slots.flat[slot]), int(after.slots.flat[slot])
            move = Expand(new, slot) if old == EMPTY else Replace(new, slot)
            replicas[[old, new]] += [-1, 1]
            replicas[EMPTY] = 2
        now = move.apply(now)
        moves.append(move)
        wrong = {s for s in wrong if now.slots.flat[s] != after.slots.flat[s]}
    return tuple(moves)
