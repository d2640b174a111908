"""The scheduler of moves, which are made in the next training steps.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (scheduler).

D devices, E experts.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import Migrate, Move, Placement, Shrink
from lingvo_moe.flexmoe.policy_maker import Adjustment, PolicyMaker


class State(NamedTuple):
    """The scheduler's state of one Mixture-of-Experts layer.

    Attributes:
        placement: the one to reach.
        loads: [D, E], average of the loads; None before the first step.
        active: whether the load was unbalanced last time.
        step: number of steps seen.
        rest: no planning before this step.
    """

    placement: Placement
    loads: np.ndarray | None = None
    active: bool = False
    step: int = 0
    rest: int = 0


class Decision(NamedTuple):
    """The decision after a step.

    Attributes:
        plan: a new plan; None if the load is balanced, or after a plan without moves.
        moves: those of the plan.
        adjustment_seconds: time of their copies by the cost model.
    """

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
        smoothing: weight of the past in the average of loads to plan for: 0 is the last step alone,
            0.75 about four. Few tokens make loads noisy, and moves that follow noise do not pay.
        patience: steps without planning after an empty plan.
    """

    maker: PolicyMaker
    threshold: float = 1.1
    release: float = 1.05
    smoothing: float = 0.75
    patience: int = 4

    def step(self, state: State, loads: np.ndarray) -> tuple[State, Decision]:
        """Called after every training step.

        Args:
            state: from the last call; `State(placement)` at the beginning.
            loads: [D, E], this step's tokens of each expert on each source.

        Returns:
            The next state, whose placement is to be reached in the next steps, and the decision.
        """
        past = loads if state.loads is None else state.loads
        ahead = self.smoothing * past + (1 - self.smoothing) * loads
        ratio = balance_ratio(device_tokens(ahead, state.placement))
        active = ratio > (self.release if state.active else self.threshold)
        plan, rest, placement = None, state.rest, state.placement
        if active and state.step >= rest:
            plan = self.maker.plan(ahead, placement)
            rest = state.step + 1 + (0 if plan.moves else self.patience)
        moves = plan.moves if plan else ()
        for move in moves:
            placement = move.apply(placement)
        decision = Decision(
            plan=plan,
            moves=moves,
            adjustment_seconds=plan.adjustment_seconds if plan else 0.0,
        )
        return State(placement, ahead, active, state.step + 1, rest), decision


def count_moves(moves: tuple[Move, ...]) -> int:
    """The number of copies: two for a swap, none for emptying a slot."""
    return sum({Migrate: 2, Shrink: 0}.get(type(move), 1) for move in moves)
