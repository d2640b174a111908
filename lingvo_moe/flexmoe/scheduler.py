"""The scheduler of moves, which are made in the next training steps.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, section 3 (scheduler).

D devices, E experts.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import Placement, relocation
from lingvo_moe.flexmoe.policy_maker import Adjustment, PolicyMaker
from lingvo_moe.training.replicas import Copy, copies, order_after


class State(NamedTuple):
    """The scheduler's state of one Mixture-of-Experts layer.

    Attributes:
        placed: the current placement.
        plan: the placement to reach; None for the same.
        loads: [D, E], average of the loads; None before the first step.
        active: whether the load was unbalanced last time.
        step: number of steps seen.
        rest: no planning before this step.
    """

    placed: Placement
    plan: Placement | None = None
    loads: np.ndarray | None = None
    active: bool = False
    step: int = 0
    rest: int = 0


class Decision(NamedTuple):
    """The decision after a step.

    Attributes:
        plan: a new plan; None if the load is balanced, or after a plan without moves.
        copies: those to make now.
        adjustment_seconds: their time by the cost model.
    """

    plan: Adjustment | None
    copies: Sequence[Copy]
    adjustment_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheduler:
    """Decides on moves from the loads of each step.

    It plans from when the balance ratio exceeds `threshold` until it is at most `release`. The
    balance ratio is the busiest device's tokens divided by the mean, 1 is balance. The copies of a
    plan are spread over the next steps; a later plan replaces the rest.

    Attributes:
        maker: makes plans.
        threshold, release: of the balance ratio.
        smoothing: weight of the past in the average of loads to plan for: 0 is the last step alone,
            0.75 about four. Few tokens make loads noisy, and moves that follow noise do not pay.
        patience: steps without planning after an empty plan.
        copies: most copies after a step.
    """

    maker: PolicyMaker
    threshold: float = 1.1
    release: float = 1.05
    smoothing: float = 0.75
    patience: int = 4
    copies: int = 2

    def step(self, state: State, loads: np.ndarray) -> tuple[State, Decision]:
        """Called after every training step.

        Args:
            state: from the last call; `State(placed)` at the beginning.
            loads: [D, E], this step's tokens of each expert on each source.

        Returns:
            The next state, for which the copies must be made before the next step, and the
            decision.
        """
        past = loads if state.loads is None else state.loads
        ahead = self.smoothing * past + (1 - self.smoothing) * loads
        placement, rest, plan = state.plan or state.placed, state.rest, None
        ratio = balance_ratio(device_tokens(ahead, placement))
        active = ratio > (self.release if state.active else self.threshold)
        if active and state.step >= rest:
            plan = self.maker.plan(ahead, placement)
            rest = state.step + 1 + (0 if plan.moves else self.patience)
        for move in plan.moves if plan else ():
            placement = move.apply(placement)
        few = copies(relocation(state.placed, placement))[: self.copies]
        placed = state.placed.after(order_after(few, placement.slots.size))
        seconds = self.maker.cost.adjustment_seconds(state.placed, placed)
        state = State(placed, placement, ahead, active, state.step + 1, rest)
        return state, Decision(plan, few, seconds)
