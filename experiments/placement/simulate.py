"""Replays a trace of expert loads under each policy, and times the steps by the cost model.

S steps, L layers, D devices, E experts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.placement.policies import CHANGES, Flex, Oracle, Policy, Shadowing
from experiments.placement.policies import StaticExpertParallel as Static
from experiments.placement.policies import StrictReassignment as Strict
from experiments.placement.traces import Trace
from lingvo_moe.flexmoe.cost import CostModel, balance_ratio
from lingvo_moe.reporting.table import Table

POLICIES = (Static(), Static(capacity_factor=None), Strict(), Shadowing(), Flex(), Oracle())
TRIGGERS = (
    Static(),
    Flex(),
    *(Flex(name=f"flex, every {n} steps", interval=n) for n in (5, 10, 20, 50, 100)),
)
# With so long a horizon copies are as good as free.
SEARCHES = (
    Flex(name="as in the paper", changes=0, horizon=1e9),
    *(Flex(name=f"and {CHANGES[n]}", changes=n + 1, horizon=1e9) for n in range(len(CHANGES))),
    Flex(),
)
AVERAGES = (
    Shadowing(),
    *(Flex(name=f"flex, {n} steps averaged", smoothing=1 - 1 / n) for n in (1, 2, 4, 8, 16)),
)
COMPARISONS = {
    "policies": POLICIES,
    "triggers": TRIGGERS,
    "searches": SEARCHES,
    "averages": AVERAGES,
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """The results of one policy on a trace; arrays are [S, L] unless given otherwise.

    Attributes:
        policy: its name.
        parts: [S, L, 3], compute, exchange and synchronisation of the busiest device.
        adjustment_seconds: of the copies after the step.
        moves: replicas copied after the step.
        ratio: balance ratio of the rows computed.
        rows: D times the rows of the busiest device: the compute capacity of the step.
        handled: choices that the chosen expert handled.
        chosen: all choices.
    """

    policy: str
    parts: np.ndarray
    adjustment_seconds: np.ndarray
    moves: np.ndarray
    ratio: np.ndarray
    rows: np.ndarray
    handled: np.ndarray
    chosen: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """Averages of a replay over the steps that count.

    Attributes:
        policy: its name.
        parts: seconds of a step, all layers: compute, exchange and synchronisation of the busiest
            device, and copies between steps, without overlap.
        token_efficiency: choices that the chosen expert handled, divided by all choices.
        expert_efficiency: the same choices divided by the rows that devices computed or could have
            computed while the busiest worked.
        ratio: balance ratio, mean.
        worst_ratio: the largest.
        moves: replicas copied in a step, mean.
    """

    policy: str
    parts: tuple[float, ...]
    token_efficiency: float
    expert_efficiency: float
    ratio: float
    worst_ratio: float
    moves: float

    @property
    def step_seconds(self) -> float:
        """Of a step, with copies."""
        return sum(self.parts)


def replay_trace(trace: Trace, policy: Policy, cost: CostModel, slots: int) -> Replay:
    """Runs a policy over a trace, layer by layer.

    Args:
        trace: with as many source devices as the cost model.
        policy: places experts.
        cost: gives times.
        slots: of a device.

    Raises:
        ValueError: the policy cannot place the experts on the devices.
    """
    count, layers = trace.loads.shape[:2]
    states = [policy.start(cost, slots, experts) for experts in trace.layer_experts]
    names = ("adjustment_seconds", "moves", "ratio", "rows", "handled")
    table = {name: np.zeros((count, layers)) for name in names}
    parts = np.zeros((count, layers, 3))
    for layer in range(layers):
        for step, loads in enumerate(trace.of_layer(layer)):
            states[layer], outcome = policy.step(cost, states[layer], loads)
            seconds = cost.of_flow(outcome.flow, outcome.counts)
            busiest = int(seconds.total.argmax())
            rows = outcome.flow.sum(axis=(0, 1))
            parts[step, layer] = [part[busiest] for part in seconds]
            values = (
                outcome.adjustment_seconds,
                outcome.moves,
                balance_ratio(rows),
                rows.max() * len(rows),
                outcome.handled,
            )
            for name, value in zip(names, values, strict=True):
                table[name][step, layer] = value
    chosen = trace.loads.sum(axis=(2, 3), dtype=np.int64)
    return Replay(policy=policy.name, parts=parts, chosen=chosen, **table)


def summarize_replay(run: Replay, skip: int = 0) -> Summary:
    """Averages without the first `skip` steps, in which policies find their first placement.

    Raises:
        ValueError: no step is left.
    """
    if skip >= len(run.ratio):
        raise ValueError(f"--skip={skip} leaves none of {len(run.ratio)} steps; make it smaller.")
    kept = slice(skip, None)
    handled = run.handled[kept].sum()
    parts = [*run.parts[kept].sum(axis=1).mean(axis=0), run.adjustment_seconds[kept].sum(1).mean()]
    return Summary(
        policy=run.policy,
        parts=tuple(map(float, parts)),
        token_efficiency=float(handled / max(run.chosen[kept].sum(), 1)),
        expert_efficiency=float(handled / max(run.rows[kept].sum(), 1)),
        ratio=float(run.ratio[kept].mean()),
        worst_ratio=float(run.ratio[kept].max()),
        moves=float(run.moves[kept].sum(axis=1).mean()),
    )


def speed_up(ours: Summary, theirs: Summary) -> tuple[float, float]:
    """The speed of `ours` relative to `theirs`: by steps, and by choices that their expert handled.

    By steps a dropped choice costs nothing; by choices it is computed again. The time to reach a
    quality is between the two.
    """
    step = theirs.step_seconds / ours.step_seconds
    return step, step * ours.token_efficiency / theirs.token_efficiency


def table(runs: Sequence[Summary]) -> Table:
    """A row for each policy; speeds are relative to the first."""
    columns = ["policy", "ms per step", "compute", "exchange", "sync", "copies", "choices handled"]
    columns += ["experts' efficiency", "ratio (worst)", "moves per step", "speed", "by choices"]
    rows = [
        (
            run.policy,
            *(f"{1e3 * seconds:.2f}" for seconds in (run.step_seconds, *run.parts)),
            f"{run.token_efficiency:.1%}",
            f"{run.expert_efficiency:.1%}",
            f"{run.ratio:.2f} ({run.worst_ratio:.2f})",
            f"{run.moves:.1f}",
            *(f"{speed:.2f}" for speed in speed_up(run, runs[0])),
        )
        for run in runs
    ]
    return Table(columns, rows)
