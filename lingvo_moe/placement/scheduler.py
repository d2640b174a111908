"""The scheduler of moves: triggers, and a queue of moves that are made between training steps.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4 (scheduler, best-effort
adjustment).

D devices, E experts.
"""

import abc
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from lingvo_moe.placement.cost import CostModel, balance_ratio, device_tokens
from lingvo_moe.placement.forecast import Forecast, Seen
from lingvo_moe.placement.placement import Migrate, Move, Placement, Shrink
from lingvo_moe.placement.policy_maker import Adjustment, PolicyMaker


@dataclasses.dataclass(frozen=True)
class Trigger(abc.ABC):
    """Decides whether the scheduler plans."""

    @abc.abstractmethod
    def should_plan(self, tokens: np.ndarray, step: int, active: bool) -> bool:
        """Whether to plan now.

        Args:
            tokens: of each device or slot, from CostModel.tokens_to_balance.
            step: number of earlier steps.
            active: the last result; planning continues until the measure is at most `release`.
        """


@dataclasses.dataclass(frozen=True)
class MaxTrigger(Trigger):
    """Plans from when the balance ratio exceeds `threshold` until it is at most `release`.

    The balance ratio is the busiest device's tokens divided by the mean.
    """

    threshold: float = 1.1
    release: float = 1.05

    def __post_init__(self):
        if not 1 <= self.release <= self.threshold:
            raise ValueError(
                f"Needs 1 <= release <= threshold, where 1 is balance; got release {self.release} "
                f"and threshold {self.threshold}."
            )

    def should_plan(self, tokens, step, active):
        del step
        return balance_ratio(tokens) > (self.release if active else self.threshold)


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
            blocked = not free
            if not blocked and budget < math.inf:
                seconds = cost.adjustment_seconds(placement, candidate)
                blocked = bool(taken) and seconds > max(budget, price)
                price = price if blocked else seconds
            if blocked:
                wait(move)
            else:
                after = candidate
                taken.append(move)
        return MoveQueue(tuple(left)), after, tuple(taken)


class State(NamedTuple):
    """The scheduler's state of one Mixture-of-Experts layer.

    Attributes:
        placement: the current one.
        seen: the forecast's state; None before the first step.
        queue: waiting moves.
        active: whether the trigger fired last time.
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
        plan: a new plan; None if the trigger did not fire or moves are waiting.
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

    Attributes:
        maker: makes plans.
        trigger: decides when to plan.
        forecast: of the loads to plan for.
        budget: seconds of copies between two steps.
        patience: steps without planning after an empty plan.
    """

    maker: PolicyMaker
    trigger: Trigger = MaxTrigger()
    forecast: Forecast = Forecast()
    budget: float = math.inf
    patience: int = 4

    def __post_init__(self):
        if not self.budget > 0:
            raise ValueError(f"budget must be > 0 seconds, got {self.budget}.")
        if self.patience < 0:
            raise ValueError(f"patience must be at least 0 steps, got {self.patience}.")

    def step(self, state: State, loads: np.ndarray) -> tuple[State, Decision]:
        """Called after every training step.

        Args:
            state: from the last call; `State(placement)` at the beginning.
            loads: [D, E], this step's tokens of each expert on each source.

        Returns:
            The next state, whose placement must be set before the next step, and the decision.
        """
        seen = self.forecast.update(state.seen, loads)
        ahead = self.forecast.loads(seen)
        tokens = self.maker.cost.tokens_to_balance(ahead, state.placement)
        active = self.trigger.should_plan(tokens, state.step, state.active)
        queue, plan, rest = state.queue, None, state.rest
        if active and not queue.moves and state.step >= rest:
            plan = self.maker.plan(ahead, state.placement)
            queue = MoveQueue(plan.moves)
            rest = state.step + 1 + (0 if plan.moves else self.patience)
        queue, placement, moves = queue.take(state.placement, self.maker.cost, self.budget)
        decision = Decision(
            ratio=balance_ratio(device_tokens(loads, state.placement)),
            plan=plan,
            moves=moves,
            adjustment_seconds=self.maker.cost.adjustment_seconds(state.placement, placement),
        )
        return State(placement, seen, queue, active, state.step + 1, rest), decision


def count_moves(moves: tuple[Move, ...]) -> int:
    """The number of copies: two for a swap, none for emptying a slot."""
    return sum({Migrate: 2, Shrink: 0}.get(type(move), 1) for move in moves)
