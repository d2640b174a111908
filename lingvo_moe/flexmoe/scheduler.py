"""The scheduler of moves, and a queue of moves that are made between training steps.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4 (scheduler, best-effort
adjustment).

D devices, E experts.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.cost import CostModel, balance_ratio, device_tokens
from lingvo_moe.flexmoe.forecast import Forecast, Seen
from lingvo_moe.flexmoe.placement import Migrate, Move, Placement, Shrink
from lingvo_moe.flexmoe.policy_maker import Adjustment, PolicyMaker


@dataclasses.dataclass(frozen=True)
class MoveQueue:
    """Waiting moves; independent ones are merged into one relocation.

    Attributes:
        moves: in the order of planning.
    """

    moves: tuple[Move, ...] = ()

    def take(
        self, placement: Placement, cost: CostModel, budget: float
    ) -> tuple["MoveQueue", Placement, tuple[Move, ...]]:
        """The moves to make now, as one relocation.

        Moves are taken in order as long as the time of all copies together is within the budget.
        The first valid move is always taken, so that a small budget does not block the queue. A
        move waits if an earlier waiting move uses the same slot, or the same expert, whose last
        replica it may be. An invalid move is dropped.

        Args:
            placement: the current one.
            cost: for the time of copies.
            budget: seconds.

        Returns:
            The rest of the queue, the placement afterwards, the moves taken.
        """
        after, price = placement, 0.0
        taken: list[Move] = []
        left: list[Move] = []
        slots: set[int] = set()  # of the moves that wait
        experts: set[int] = set()

        def wait(move):
            left.append(move)
            slots.update(move.touched)
            experts.update(move.experts(after))

        for move in self.moves:
            try:
                candidate = move.apply(after)
            except ValueError:
                if left:  # an earlier waiting move may make it valid
                    wait(move)
                continue
            free = slots.isdisjoint(move.touched) and experts.isdisjoint(move.experts(after))
            if free and budget < math.inf:
                seconds = cost.adjustment_seconds(placement, candidate)
                free = not taken or seconds <= max(budget, price)
                price = seconds if free else price
            if free:
                after = candidate
                taken.append(move)
            else:
                wait(move)
        return MoveQueue(tuple(left)), after, tuple(taken)


class State(NamedTuple):
    """The scheduler's state of one Mixture-of-Experts layer.

    Attributes:
        placement: the current one.
        seen: the forecast's state; None before the first step.
        queue: waiting moves.
        active: whether the load was unbalanced last time.
        step: number of steps seen.
        rest: no planning before this step.
    """

    placement: Placement
    seen: Seen | None = None
    queue: MoveQueue = MoveQueue()
    active: bool = False
    step: int = 0
    rest: int = 0


class Decision(NamedTuple):
    """The moves between this step and the next.

    Attributes:
        ratio: balance ratio of this step.
        plan: a new plan; None if the load is balanced or moves are waiting.
        moves: made now.
        adjustment_seconds: time of their copies by the cost model.
    """

    ratio: float
    plan: Adjustment | None
    moves: tuple[Move, ...]
    adjustment_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduler:
    """Decides on moves from the loads of each step.

    It plans from when the balance ratio exceeds `threshold` until it is at most `release`. The
    balance ratio is the busiest device's tokens divided by the mean, 1 is balance.

    Attributes:
        maker: makes plans.
        threshold, release: of the balance ratio.
        forecast: of the loads to plan for.
        budget: seconds of copies between two steps.
        patience: steps without planning after an empty plan.
    """

    maker: PolicyMaker
    threshold: float = 1.1
    release: float = 1.05
    forecast: Forecast = Forecast()
    budget: float = math.inf
    patience: int = 4

    def step(self, state: State, loads: np.ndarray) -> tuple[State, Decision]:
        """Called after every training step.

        Args:
            state: from the last call; `State(placement)` at the beginning.
            loads: [D, E], this step's tokens of each expert on each source.

        Returns:
            The next state, whose placement must be set before the next step, and the decision.
        """
        cost = self.maker.cost
        seen = self.forecast.update(state.seen, loads)
        ahead = self.forecast.loads(seen)
        ratio = balance_ratio(device_tokens(ahead, state.placement))
        active = ratio > (self.release if state.active else self.threshold)
        queue, plan, rest = state.queue, None, state.rest
        if active and not queue.moves and state.step >= rest:
            plan = self.maker.plan(ahead, state.placement)
            queue = MoveQueue(plan.moves)
            rest = state.step + 1 + (0 if plan.moves else self.patience)
        queue, placement, moves = queue.take(state.placement, cost, self.budget)
        decision = Decision(
            ratio=balance_ratio(device_tokens(loads, state.placement)),
            plan=plan,
            moves=moves,
            adjustment_seconds=cost.adjustment_seconds(state.placement, placement),
        )
        return State(placement, seen, queue, active, state.step + 1, rest), decision


def count_moves(moves: tuple[Move, ...]) -> int:
    """The number of copies: two for a swap, none for emptying a slot."""
    return sum({Migrate: 2, Shrink: 0}.get(type(move), 1) for move in moves)
