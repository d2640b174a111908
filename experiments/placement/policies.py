"""Policies of expert placement, with one interface: the actions of each policy at each step.

D devices (as sources), H the same as targets, K slots of a device, E experts.
"""

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.scheduler import Scheduler, State
from lingvo_moe.testing.device_flow import device_flow


class Outcome(NamedTuple):
    """The result of one step of one layer.

    Attributes:
        flow: [E, D, H], rows of each expert from each source to each target, with the padding of
            fixed capacities.
        counts: int [E, H], slots of each expert on each device during the step.
        handled: choices that the chosen expert handled.
        moves: replicas copied after the step.
        adjustment_seconds: time of these copies by the cost model.
    """

    flow: np.ndarray
    counts: np.ndarray
    handled: int
    moves: int = 0
    adjustment_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(abc.ABC):
    """A policy that places experts and sends tokens to them."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name in tables."""

    @abc.abstractmethod
    def start(self, cost: CostModel, slots: int, experts: int) -> Any:
        """The state before the first step.

        Args:
            cost: of the machine with D devices.
            slots: of a device, for policies that use slots.
            experts: E.

        Raises:
            ValueError: the policy cannot place this number of experts on these devices.
        """

    @abc.abstractmethod
    def step(self, cost: CostModel, state: Any, loads: np.ndarray) -> tuple[Any, Outcome]:
        """One step.

        Args:
            cost: as in start.
            state: from start or the last step.
            loads: int [D, E].
        """


def home_devices(devices: int, experts: int) -> np.ndarray:
    """Static expert parallelism: for each source (row) the device of each expert, int [D, E].

    With fewer experts than devices, each block of E devices holds all experts once, and its tokens
    stay in the block.

    Raises:
        ValueError: one number does not divide the other.
    """
    if experts % devices and devices % experts:
        raise ValueError(
            f"Static expert parallelism of {experts} experts on {devices} devices needs that one "
            f"number divides the other; give another --devices."
        )
    if experts >= devices:
        return np.tile(np.arange(experts) * devices // experts, (devices, 1))
    first = np.arange(devices)[:, None] // experts * experts
    return first + np.arange(experts)


def _to_homes(rows: np.ndarray, home: np.ndarray) -> np.ndarray:
    """Flow [E, D, H] of rows [D, E] that go to their expert's home device."""
    devices, experts = rows.shape
    flow = np.zeros((experts, devices, devices), np.int64)
    source, expert = np.indices(rows.shape)
    flow[expert, source, home] = rows
    return flow


def _home_counts(home: np.ndarray) -> np.ndarray:
    devices, experts = home.shape
    counts = np.zeros((experts, devices), np.int64)
    counts[np.arange(experts), home] = 1
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Static(Policy):
    """Experts do not move; the state is the device of each."""

    def start(self, cost, slots, experts):
        del slots
        return home_devices(cost.num_devices, experts)

    @staticmethod
    def _computed(home, rows, loads):
        """The Outcome of sending rows [D, E] to the home devices, for these loads."""
        handled = int(np.minimum(rows, loads).sum())
        return Outcome(_to_homes(rows, home), _home_counts(home), handled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticExpertParallel(_Static):
    """Every expert has one fixed device (GShard, DeepSpeed-MoE).

    Attributes:
        capacity_factor: an expert takes at most capacity_factor · (a source's tokens) / E from each
            source. Other tokens are dropped; unused capacity is computed and sent as padding. None
            for no limit.
    """

    capacity_factor: float | None = 1.0

    @property
    def name(self):
        factor = self.capacity_factor
        return "static, no limit" if factor is None else f"static, capacity {factor:g}"

    def step(self, cost, state, loads):
        rows = loads
        if self.capacity_factor is not None:
            room = np.ceil(self.capacity_factor * loads.sum(axis=1) / loads.shape[1])
            rows = np.broadcast_to(room.astype(np.int64)[:, None], loads.shape)
        return state, self._computed(state, rows, loads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrictReassignment(_Static):
    """Every expert gets the same number of tokens from each source (SWIPE).

    Tokens above that number go to an expert that they did not choose, and count as not handled.
    """

    name = "strict re-assignment"

    def step(self, cost, state, loads):
        experts = loads.shape[1]
        total = loads.sum(axis=1, keepdims=True)
        # On each source the remainder begins with another expert, so that all experts get some of
        # it.
        turn = (np.arange(experts) - np.arange(len(loads))[:, None]) % experts
        rows = total // experts + (turn < total % experts)
        return state, self._computed(state, rows, loads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadowing(_Static):
    """Copies busy experts to every device for one step (FasterMoE).

    He et al. 2022, FasterMoE, PPoPP. The experts are chosen in each step with its loads known: the
    number of busiest experts that gives the shortest step by the cost model. The weights of a
    shadow are sent to all devices and its gradients summed over all, which costs one AllReduce. A
    shadow handles the tokens of its device and needs no slot.
    """

    name = "shadowing"

    def step(self, cost, state, loads):
        flow, counts = _to_homes(loads, state), _home_counts(state)
        local = _to_homes(loads, np.broadcast_to(np.arange(len(loads))[:, None], loads.shape))
        best, tried = Outcome(flow, counts, int(loads.sum())), (flow.copy(), counts.copy())
        least = cost.of_flow(flow, counts).total.max()
        for hot in np.argsort(-loads.sum(axis=0), kind="stable"):
            tried[0][hot], tried[1][hot] = local[hot], 1
            if (seconds := cost.of_flow(*tried).total.max()) < least:
                least = seconds
                best = best._replace(flow=tried[0].copy(), counts=tried[1].copy())
        return state, best


CHANGES = ("any slot", "smooth maximum", "any expert, swaps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Literal(PolicyMaker):
    """The greedy step of FlexMoE's algorithm 2 as it is written, or with our first changes.

    The expert with the most tokens per slot takes a slot from the one with the fewest, while this
    makes the busiest device faster.

    Attributes:
        changes: how many of CHANGES to make.
    """

    changes: int = 0

    def next_move(self, board):
        """See PolicyMaker."""
        if self.changes > 2:
            return super().next_move(board)
        caps = board.loads.sum(axis=1) / board.counts.sum(axis=1)
        tried = board.expansions(int(caps.argmax()))
        if self.changes == 2:
            return board.best(tried)
        moves = [tried.make(i) for i in range(len(tried.delta))]
        given = [caps[board.placement.slots.flat[move.slot]] for move in moves]
        peaks = (board.busy + tried.delta).max(axis=1)
        peaks[(given > np.min(given, initial=np.inf)) & (self.changes == 0)] = np.inf
        return moves[peaks.argmin()] if peaks.min(initial=np.inf) < board.busy.max() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flex(Policy):
    """FlexMoE: replicas in slots, moved by a scheduler that knows only past steps.

    Attributes:
        name: see Policy.
        interval: plans every so many steps instead, independent of the loads (FlexMoE's figure 6).
        changes: see Literal.
        horizon: see PolicyMaker.
        smoothing, copies: see Scheduler.
    """

    name: str = "flex"
    interval: int | None = None
    changes: int = len(CHANGES)
    horizon: float = PolicyMaker.horizon
    smoothing: float = Scheduler.smoothing
    copies: int = Scheduler.copies

    def start(self, cost, slots, experts):
        return State(Placement.even(cost.num_devices, slots, experts))

    def step(self, cost, state, loads):
        counts = state.placed.counts()
        maker = Literal(cost=cost, horizon=self.horizon, changes=self.changes)
        scheduler = Scheduler(maker=maker, smoothing=self.smoothing, copies=self.copies)
        if self.interval is not None:
            limit = np.inf if state.step % self.interval else 0.0
            scheduler = dataclasses.replace(scheduler, threshold=limit, release=limit)
        state, decision = scheduler.step(state, loads)
        outcome = Outcome(
            device_flow(loads, counts),
            counts,
            int(loads.sum()),
            len(decision.copies),
            decision.adjustment_seconds,
        )
        return state, outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oracle(Policy):
    """Plans each step with its loads known and moves without cost: a reference for other policies.

    It uses the same greedy search, so it may not be optimal.
    """

    name = "oracle"

    def start(self, cost, slots, experts):
        return Placement.even(cost.num_devices, slots, experts)

    def step(self, cost, state, loads):
        free = dataclasses.replace(cost, state_bytes=0.0)
        maker = PolicyMaker(cost=free, max_moves=256)
        before = state
        for move in maker.plan(loads, state).moves:
            state = move.apply(state)
        counts, moves = state.counts(), int((state.slots != before.slots).sum())
        return state, Outcome(device_flow(loads, counts), counts, int(loads.sum()), moves)
