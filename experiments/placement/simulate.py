"""Replays a trace of expert loads under each policy, and times the steps by the cost model.

S steps, L layers, D devices, E experts.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from experiments.placement.policies import Flex, Oracle, Policy, Shadowing
from experiments.placement.policies import StaticExpertParallel as Static
from experiments.placement.policies import StrictReassignment as Strict
from experiments.placement.triggers import IntervalTrigger
from lingvo_moe.placement.cost import CostModel, balance_ratio
from lingvo_moe.placement.traces import Trace

POLICIES = (Static(), Static(capacity_factor=None), Strict(), Shadowing(), Flex(), Oracle())
TRIGGERS = (
    Static(),
    Flex(),
    *(Flex(trigger=IntervalTrigger(steps)) for steps in (5, 10, 20, 50, 100)),
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """The results of one policy on a trace; arrays are [S, L] unless given otherwise.

    Attributes:
        policy: its name.
        seconds: of the layer in that step, without copies between steps.
        parts: [S, L, 3], compute, exchange and synchronisation of the busiest device.
        adjustment_seconds: of the copies after the step.
        moves: replicas copied after the step.
        ratio: balance ratio of the rows computed.
        rows: D times the rows of the busiest device: the compute capacity of the step.
        handled: choices that the chosen expert handled.
        chosen: all choices.
        replicas: [S, E] slots of each expert in the first layer.
        counts: [E, D], slots of each expert on each device in the first layer at the end.
    """

    policy: str
    seconds: np.ndarray
    parts: np.ndarray
    adjustment_seconds: np.ndarray
    moves: np.ndarray
    ratio: np.ndarray
    rows: np.ndarray
    handled: np.ndarray
    chosen: np.ndarray
    replicas: np.ndarray
    counts: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """Averages of a replay over the steps that count.

    Attributes:
        policy: its name.
        step_seconds: of all layers, mean, with copies.
        compute: part of it, of each layer's busiest device.
        exchange: likewise.
        synchronise: likewise.
        adjustment: likewise, for copies between steps, without overlap.
        token_efficiency: choices that the chosen expert handled, divided by all choices.
        expert_efficiency: the same choices divided by the rows that devices computed or could have
            computed while the busiest worked.
        ratio: balance ratio, mean.
        worst_ratio: the largest.
        moves: replicas copied in a step, mean.
        nanoseconds_a_choice: step_seconds divided by the choices handled in a step.
    """

    policy: str
    step_seconds: float
    compute: float
    exchange: float
    synchronise: float
    adjustment: float
    token_efficiency: float
    expert_efficiency: float
    ratio: float
    worst_ratio: float
    moves: float
    nanoseconds_a_choice: float


def replay_trace(
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    slots: int,
    progress: Callable[[int, int], None] = lambda step, steps: None,
) -> Replay:
    """Runs a policy over a trace, layer by layer.

    Args:
        trace: with as many source devices as the cost model.
        policy: places experts.
        cost: gives times.
        slots: of a device.
        progress: called with the step and the number of steps.

    Raises:
        ValueError: the numbers of devices differ, or the policy cannot place the experts on them.
    """
    if trace.num_devices != cost.num_devices:
        raise ValueError(
            f"The trace has {trace.num_devices} source devices, the cost model "
            f"{cost.num_devices}; see `loads.on_devices`."
        )
    count, layers = trace.loads.shape[:2]
    states = [policy.start(cost, slots, experts) for experts in trace.layer_experts]
    loads = [trace.of_layer(layer) for layer in range(layers)]
    names = ("seconds", "adjustment_seconds", "moves", "ratio", "rows", "handled")
    table = {name: np.zeros((count, layers)) for name in names}
    parts = np.zeros((count, layers, 3))
    replicas = np.zeros((count, trace.layer_experts[0]), np.int64)
    for step in range(count):
        for layer in range(layers):
            states[layer], outcome = policy.step(cost, states[layer], loads[layer][step])
            seconds = cost.of_flow(outcome.flow, outcome.counts)
            busiest = int(seconds.total.sum(axis=0).argmax())
            rows = outcome.flow.sum(axis=(0, 1))
            parts[step, layer] = [part[:, busiest].sum() for part in seconds]
            values = (
                parts[step, layer].sum(),
                outcome.adjustment_seconds,
                outcome.moves,
                balance_ratio(rows),
                rows.max() * len(rows),
                outcome.handled,
            )
            for name, value in zip(names, values, strict=True):
                table[name][step, layer] = value
            if layer == 0:
                replicas[step], counts = outcome.counts.sum(axis=1), outcome.counts
        progress(step + 1, count)
    chosen = trace.loads.sum(axis=(2, 3), dtype=np.int64)
    return Replay(
        policy=policy.name, parts=parts, chosen=chosen, replicas=replicas, counts=counts, **table
    )


def summarize_replay(run: Replay, skip: int = 0) -> Summary:
    """Computes averages.

    Args:
        run: the replay.
        skip: first steps to ignore, in which policies find their first placement.

    Raises:
        ValueError: no step is left.
    """
    check_skip(skip, len(run.seconds))
    kept = slice(skip, None)
    parts = run.parts[kept].sum(axis=1).mean(axis=0)
    adjustment = run.adjustment_seconds[kept].sum(axis=1).mean()
    handled = run.handled[kept].sum()
    step_seconds = float(parts.sum() + adjustment)
    return Summary(
        policy=run.policy,
        step_seconds=step_seconds,
        compute=float(parts[0]),
        exchange=float(parts[1]),
        synchronise=float(parts[2]),
        adjustment=float(adjustment),
        token_efficiency=float(handled / max(run.chosen[kept].sum(), 1)),
        expert_efficiency=float(handled / max(run.rows[kept].sum(), 1)),
        ratio=float(run.ratio[kept].mean()),
        worst_ratio=float(run.ratio[kept].max()),
        moves=float(run.moves[kept].sum(axis=1).mean()),
        nanoseconds_a_choice=float(
            1e9 * step_seconds / max(handled / (len(run.seconds) - skip), 1)
        ),
    )


def check_skip(skip: int, steps: int) -> None:
    """Checks, before a long replay, that some steps are left for averages.

    Raises:
        ValueError: no step is left.
    """
    if not 0 <= skip < steps:
        raise ValueError(
            f"--skip={skip} leaves none of {steps} steps; give a smaller number, or more steps."
        )


def speed_up(ours: Summary, theirs: Summary, other_seconds: float = 0.0) -> tuple[float, float]:
    """The speed of `ours` relative to `theirs`: by steps, and by choices that their expert handled.

    By steps a dropped choice costs nothing; by choices it is computed again. The time to reach a
    quality is between the two.

    Args:
        ours: of one policy.
        theirs: of another, on the same trace.
        other_seconds: of a step outside these layers, equal for both.
    """
    step = (theirs.step_seconds + other_seconds) / (ours.step_seconds + other_seconds)
    return step, step * ours.token_efficiency / theirs.token_efficiency


def replay_all(
    trace: Trace,
    cost: CostModel,
    slots: int,
    policies: Sequence[Policy] = POLICIES,
    progress: Callable[[str, int, int], None] = lambda name, step, steps: None,
) -> list[Replay]:
    """Replays the trace under each policy; arguments as in replay_trace."""
    return [
        replay_trace(trace, policy, cost, slots, lambda *at, name=policy.name: progress(name, *at))
        for policy in policies
    ]
