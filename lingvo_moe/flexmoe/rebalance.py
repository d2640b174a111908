"""A runtime that moves experts between the steps of training.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4. The scheduler gets the loads
of every step. Its moves are made between the next steps, a few after each: the host starts the
copies and does not wait for them, and they use only the devices of their two slots.

L layers, D devices, K slots of a device, E experts.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import Placement
from lingvo_moe.flexmoe.scheduler import Scheduler, State
from lingvo_moe.nn.nested_map import NestedMap

_AVERAGES, _COUNTERS, _PLANS = "placement/averages", "placement/counters", "placement/plans"


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
        self._start()

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
            _PLANS: np.stack([(state.plan or state.placed).slots for state in states]),
        }

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """See Local. If the checkpoint has no state of this scheduler, a new one starts."""
        self._runtime.restore(tensors)
        self._start()
        slots = next(iter(self._states.values())).placed.slots
        if _PLANS not in tensors or tensors[_PLANS].shape[1:] != slots.shape:
            return
        found = (np.asarray(tensors[name]) for name in (_AVERAGES, _COUNTERS, _PLANS))
        for (table, experts), loads, (active, step, rest), plan in zip(
            self._tables.items(), *found, strict=True
        ):
            placed, loads = self._states[table].placed, loads[:, :experts]
            planned = Placement(plan, experts)
            self._states[table] = State(placed, planned, loads, bool(active), step, rest)

    def train(
        self,
        batch: Mapping[str, np.ndarray],
        compiling: Callable[[], Any] = contextlib.nullcontext,
    ) -> NestedMap:
        """Takes one step, and starts to move experts.

        Args:
            batch, compiling: see Local.

        Returns:
            The metrics of the step, and float64 [L] for layers: `balance_ratio` of devices' tokens,
            before moves; `moves`, number of copies; `move_seconds_predicted` of these;
            `move_seconds` in which the host started them.
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
        """Plans the moves of one layer, and starts the next copies."""
        ratio = balance_ratio(device_tokens(loads, self._states[table].placed))
        self._states[table], decision = self._scheduler.step(self._states[table], loads)
        start = time.monotonic()
        if decision.copies:
            self._runtime.relocate(table, decision.copies)
        seconds = time.monotonic() - start if decision.copies else 0.0
        return ratio, len(decision.copies), decision.adjustment_seconds, seconds

    def _start(self):
        """Scheduling from the runtime's placements."""
        tensors = self._runtime.state()
        self._states = {
            table: State(Placement(np.asarray(tensors[f"theta/{table}"]), experts))
            for table, experts in self._tables.items()
        }


def _padded(loads: np.ndarray, most: int) -> np.ndarray:
    return np.pad(loads, [(0, 0), (0, most - loads.shape[1])])
