"""A runtime that moves experts between the steps of training.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4. The scheduler gets the loads
of every step, and its moves are made before the next step.

L layers, D devices, K slots of a device, E experts.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lingvo_moe.flexmoe.placement import Placement, relocation
from lingvo_moe.flexmoe.scheduler import Scheduler, State, count_moves
from lingvo_moe.nn.nested_map import NestedMap

_AVERAGES, _COUNTERS = "placement/averages", "placement/counters"


class Rebalanced:
    """A runtime (see train.loop) of a model whose experts are VExperts.

    The host waits for the loads of each step. The scheduler's state is part of the checkpoint.
    """

    def __init__(self, runtime: Any, tables: Mapping[str, int], scheduler: Scheduler):
        """Wraps a Local or Spmd that is not yet initialised or restored.

        Args:
            runtime: its training metrics have `source_load` [L, D, E or more].
            tables: path of each layer's placement among the weights -> E, in the order of layers.
            scheduler: used for each layer separately.
        """
        self._runtime, self._tables, self._scheduler = runtime, tables, scheduler
        self._states: dict[str, State] = {}

    def __getattr__(self, name: str) -> Any:
        """Other methods of the runtime, such as evaluate and translate."""
        return getattr(self._runtime, name)

    def initialize(self, seed: int, *given: Mapping[str, Any]) -> None:
        """See Local."""
        self._runtime.initialize(seed, *given)
        tensors = self._runtime.state()
        self._states = {table: State(self._placement(table, tensors)) for table in self._tables}

    def state(self) -> dict[str, Any]:
        """See Local; with the state of the scheduler."""
        states = list(self._states.values())
        loads = [state.loads for state in states if state.loads is not None]
        if len(loads) < len(states):
            return self._runtime.state()
        most = max(self._tables.values())
        return self._runtime.state() | {
            _AVERAGES: np.stack([_padded(one, most) for one in loads]),
            _COUNTERS: np.array([[s.active, s.step, s.rest] for s in states], np.int64),
        }

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """See Local. If the checkpoint has no state of this scheduler, a new one starts."""
        self._runtime.restore(tensors)
        now = self._runtime.state()
        self._states = {table: State(self._placement(table, now)) for table in self._tables}
        devices = next(iter(self._states.values())).placement.num_devices
        if _AVERAGES not in tensors or tensors[_AVERAGES].shape[1:-1] != (devices,):
            return
        averages, counters = (np.asarray(tensors[name]) for name in (_AVERAGES, _COUNTERS))
        for table, loads, (active, step, rest) in zip(
            self._tables, averages, counters.tolist(), strict=True
        ):
            self._states[table] = self._states[table]._replace(
                loads=loads[:, : self._tables[table]],
                active=bool(active),
                step=step,
                rest=rest,
            )

    def train(
        self,
        batch: Mapping[str, np.ndarray],
        compiling: Callable[[], Any] = contextlib.nullcontext,
    ) -> NestedMap:
        """Takes one step and moves experts.

        Args:
            batch, compiling: see Local.

        Returns:
            The metrics of the step, and float64 [L] for layers: `balance_ratio` of devices' tokens,
            before moves; `moves`, number of slots with a new replica; `move_seconds_predicted` and
            `move_seconds`, predicted and measured time of the moves.
        """
        metrics = self._runtime.train(batch, compiling)
        loads = np.asarray(metrics.source_load, np.float64)
        rows = [
            self._follow(table, layer_loads[:, :num_experts]) if layer_loads.any() else (0.0,) * 4
            for (table, num_experts), layer_loads in zip(self._tables.items(), loads, strict=True)
        ]  # a skipped step has no loads
        names = ("balance_ratio", "moves", "move_seconds_predicted", "move_seconds")
        columns = np.array(rows).transpose()
        return NestedMap(metrics, **dict(zip(names, columns, strict=True)))

    def _follow(self, table: str, loads: np.ndarray) -> Sequence[float]:
        """Plans and makes the moves of one layer."""
        before = self._states[table].placement
        state, decision = self._scheduler.step(self._states[table], loads)
        seconds = 0.0
        if state.placement != before:
            start = time.monotonic()
            source = relocation(before, state.placement)
            self._runtime.relocate(table, source, state.placement.slots)
            seconds = time.monotonic() - start
        self._states[table] = state
        moves = count_moves(decision.moves)
        return decision.ratio, moves, decision.adjustment_seconds, seconds

    def _placement(self, table, tensors):
        return Placement(np.asarray(tensors[f"theta/{table}"]), self._tables[table])


def _padded(loads: np.ndarray, most: int) -> np.ndarray:
    return np.pad(loads, [(0, 0), (0, most - loads.shape[1])])
