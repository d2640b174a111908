"""Finds moves that make the next steps faster: FlexMoE's greedy search with the cost model.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (policy maker). One greedy step gives
the expert with the most tokens a slot one more slot. The slot is taken from an expert with several
slots, so that the cost falls most.

Differences from the paper:
- The paper takes the slot of the least busy expert. This search tries all slots of experts with
  several, on all devices.
- The paper's rule stops if the busiest device does not hold the busiest expert, or if two devices
  are equally busy. So this search lowers a smooth maximum over devices, their norm of order 16. If
  no slot for the busiest expert helps, it tries more slots for the other experts of the busiest
  device, then other experts in that device's slots, then swaps of its slots.
- The value of a plan is its gain over `horizon` steps minus the time of its copies. Of the plan's
  first 0, 1, 2, 4, … moves and of all, those with the highest value are made; perhaps none.
- The paper moves experts until the load is balanced, and swaps them afterwards while that lowers
  the cost. Here a plan may go on below the threshold, and with a balanced load nothing is planned.

D devices, E experts, N candidates.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.placement import EMPTY, Expand, Migrate, Move, Placement, Replace

_EPSILON = 1e-9
_IDLE = 32  # devices whose slots are tried in swaps, the least busy first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Moves in order, and their effect by the cost model.

    Attributes:
        moves: each is valid after the earlier ones.
        seconds_before: of a step without the moves.
        seconds_after: of a step with all moves.
        adjustment_seconds: time of all copies together.
    """

    moves: tuple[Move, ...]
    seconds_before: float
    seconds_after: float
    adjustment_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyMaker:
    """The search.

    Attributes:
        cost: the cost model.
        horizon: number of steps whose gain must exceed the time of the copies.
        max_moves: largest number of greedy steps of a search.
    """

    cost: CostModel
    horizon: float = 20.0
    max_moves: int = 64

    def plan(self, loads: np.ndarray, placement: Placement) -> Adjustment:
        """The moves that save more time than they cost.

        Args:
            loads: [D, E], expected tokens of each expert on each source.
            placement: the current one.

        Returns:
            A plan, possibly without moves.
        """
        board = SearchState(self.cost, loads, placement)
        return self._cut(placement, self._search(board))

    def _search(self, board: "SearchState") -> list[tuple[Move | None, Placement, float]]:
        """Greedy steps, beginning with none: (move, placement after it, seconds of a step)."""
        stages: list[tuple[Move | None, Placement, float]] = [
            (None, board.placement, board.step_seconds)
        ]
        while len(stages) <= self.max_moves and (move := self.next_move(board)) is not None:
            board.apply(move)
            stages.append((move, board.placement, board.step_seconds))
        return stages

    def _cut(self, placement: Placement, stages: list) -> Adjustment:
        """The prefix with the highest value, of some prefixes of a search."""
        start, moves = stages[0][2], [stage[0] for stage in stages[1:]]
        # Computing the cost takes as long as finding a move, so only some lengths are tried.
        lengths = sorted({0, len(moves), *(2**i for i in range(len(moves).bit_length()))})
        plans = (
            Adjustment(
                moves=tuple(moves[:length]),
                seconds_before=start,
                seconds_after=stages[length][2],
                adjustment_seconds=self.cost.adjustment_seconds(placement, stages[length][1]),
            )
            for length in lengths
        )
        return max(plans, key=self._net)

    def _net(self, plan: Adjustment) -> float:
        """Seconds saved within the horizon minus the time of the copies."""
        return (plan.seconds_before - plan.seconds_after) * self.horizon - plan.adjustment_seconds

    def next_move(self, board: "SearchState") -> Move | None:
        """One greedy step; None if no single move helps."""
        for hot in board.hot_experts():
            move = board.best(board.expansions(hot))
            if move is not None:
                return move
        return board.best(board.replacements()) or board.best(board.swaps())


class _Change(NamedTuple):
    """Candidate moves of one kind.

    Attributes:
        make: number of a candidate -> the move.
        delta: [N, D], change of the seconds of devices by each candidate.
    """

    make: Callable[[int], Move]
    delta: np.ndarray


class SearchState:
    """A placement with each expert's seconds on each device, updated at each move."""

    def __init__(self, cost: CostModel, loads: np.ndarray, placement: Placement):
        self.cost = cost
        self.placement = placement
        self.loads = np.asarray(loads, float).T  # [E, D]
        self.counts = placement.counts()
        self.seconds = cost.expected(self.loads, self.counts).total  # [E, D]
        # Cache of `changed`, for one slot more and one fewer, and the experts in it.
        self._changed = np.empty((2, *self.counts.shape, len(self.counts[0])))
        self._known = np.zeros((2, len(self.counts)), bool)

    @property
    def busy(self) -> np.ndarray:
        """[D], seconds of each device."""
        return self.seconds.sum(axis=0)

    @property
    def step_seconds(self) -> float:
        """Of the busiest device."""
        return float(self.busy.max())

    def apply(self, move: Move) -> None:
        """Makes the move."""
        self.placement = move.apply(self.placement)
        counts = self.placement.counts()
        changed = np.flatnonzero((counts != self.counts).any(axis=1))
        self.counts = counts
        self.seconds[changed] = self.cost.expected(self.loads[changed], counts[changed]).total
        self._known[:, changed] = False

    def hot_experts(self) -> list[int]:
        """First that with most tokens a slot, then those of the busiest device, costliest first."""
        caps = self.loads.sum(axis=1) / self.counts.sum(axis=1)
        busiest = int(self.busy.argmax())
        held = np.flatnonzero(self.counts[:, busiest])
        costly = held[np.argsort(-self.seconds[held, busiest], kind="stable")]
        return list(dict.fromkeys([int(caps.argmax()), *costly.tolist()]))

    def changed(self, experts: np.ndarray, devices: np.ndarray, by: int) -> np.ndarray:
        """[N, D], seconds that `by` = 1 or -1 slots of an expert on a device add to all devices.

        For -1 each device must hold a slot of its expert that is not the expert's last.
        """
        kind = int(by < 0)
        wanted = np.zeros(len(self.counts), bool)
        wanted[experts] = True
        new = np.flatnonzero(wanted & ~self._known[kind])
        if len(new):
            counts = self.counts[new, None] + by * np.eye(self.counts.shape[1], dtype=np.int64)
            absent = (counts.min(axis=2) < 0) | (counts.sum(axis=2) == 0)
            counts[absent] = 1  # not used
            seconds = self.cost.expected(self.loads[new, None], counts).total
            self._changed[kind, new] = seconds - self.seconds[new, None]
            self._known[kind, new] = True
        return self._changed[kind, experts, devices]

    def expansions(self, hot: int) -> _Change:
        """One more slot for `hot`: an empty one, or any slot of an expert with several."""
        slots, per_device = self.placement.slots, self.placement.slots_per_device
        replicas = np.append(self.counts.sum(axis=1), 2)  # the last is EMPTY's
        chosen = np.flatnonzero((replicas[slots] > 1) & (slots != hot) & _distinct(slots))
        cold, device = slots.flat[chosen], chosen // per_device
        delta = self.changed(np.full_like(device, hot), device, 1)
        held = cold != EMPTY
        delta[held] += self.changed(cold[held], device[held], -1)

        def make(i: int) -> Move:
            kind = Expand if cold[i] == EMPTY else Replace
            return kind(hot, int(chosen[i]))

        return _Change(make, delta)

    def replacements(self) -> _Change:
        """A slot of the busiest device whose expert has several slots, given to any expert."""
        busiest = int(self.busy.argmax())
        more = self.counts + np.eye(len(self.busy), dtype=np.int64)[busiest]
        added = self.cost.expected(self.loads, more).total - self.seconds  # [E, D]
        slots, experts = self.placement.slots[busiest], np.arange(len(self.counts))
        replicas = np.append(self.counts.sum(axis=1), 0)  # the last is EMPTY's
        places = np.flatnonzero(_distinct(slots[None])[0] & (replicas[slots] > 1))
        place, new = (x.ravel() for x in np.meshgrid(places, experts, indexing="ij"))
        other = slots[place] != new
        place, new = place[other], new[other]
        delta = added[new] + self.changed(slots[place], np.full_like(place, busiest), -1)
        first = busiest * len(slots)
        return _Change(lambda i: Replace(int(new[i]), int(first + place[i])), delta)

    def swaps(self) -> _Change:
        """Swaps of its slots with those of idle devices and of devices with a replica."""
        slots, per_device = self.placement.slots, self.placement.slots_per_device
        busy = self.busy
        busiest = int(busy.argmax())
        others = np.argsort(busy, kind="stable")
        others = others[others != busiest]
        distinct = _distinct(slots)
        parts = []
        for place in np.flatnonzero(distinct[busiest]):
            expert = slots[busiest, place]
            beside = others[self.counts[expert, others] > 0] if expert != EMPTY else others[:0]
            near = np.zeros(len(slots), bool)
            near[others[:_IDLE]] = near[beside[:_IDLE]] = True
            there = np.flatnonzero(near[:, None] & distinct & (slots != expert))
            parts.append(np.stack([np.full_like(there, busiest * per_device + place), there], 1))
        pairs = np.concatenate(parts)  # of slots, [n, 2]
        experts = slots.ravel()[pairs]
        eye = np.eye(len(slots), dtype=np.int64)
        shift = eye[pairs[:, 1] // per_device] - eye[busiest]
        exist = (experts != EMPTY)[:, :, None]
        counts = self.counts[experts] + np.stack([shift, -shift], axis=1)
        new = self.cost.expected(self.loads[experts], np.where(exist, counts, 1)).total
        delta = np.where(exist, new - self.seconds[experts], 0.0).sum(axis=1)
        return _Change(lambda i: Migrate(*map(int, pairs[i])), delta)

    def best(self, change: _Change) -> Move | None:
        """The candidate with the lowest peak, the first of equal ones; None if none lowers it."""
        if not len(change.delta):
            return None
        busy = self.busy
        peaks = smooth_maximum(busy + change.delta)
        least = int(peaks.argmin())
        now = smooth_maximum(busy)
        return change.make(least) if peaks[least] < now * (1 - _EPSILON) else None


def smooth_maximum(busy: np.ndarray) -> np.ndarray:
    """A smooth maximum over the last axis: the mean of 16th powers, to the power 1/16."""
    top = np.maximum(busy.max(axis=-1, keepdims=True), 1e-300)
    power = busy / top
    for _ in range(4):
        power = power * power
    return top[..., 0] * power.mean(axis=-1) ** (1 / 16)


def _distinct(slots: np.ndarray) -> np.ndarray:
    """bool [D, K]: slots without an earlier slot of the same content on their device."""
    same = slots[:, :, None] == slots[:, None, :]
    return ~np.tril(same, k=-1).any(axis=2)
