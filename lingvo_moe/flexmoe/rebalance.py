"""A runtime that moves experts between the steps of training.

Source: Nie et al. 2023, FlexMoE, arXiv 2304.03946, sections 3 and 4. The scheduler gets the loads
of every step. Its moves are made beside the next steps, a few after each: the host starts the
copies and does not wait for them, and they use only the devices of their two slots.

L layers, D devices, K slots of a device, E experts.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lingvo_moe.flexmoe.cost import balance_ratio, device_tokens
from lingvo_moe.flexmoe.placement import Placement, relocation
from lingvo_moe.flexmoe.scheduler import Scheduler, State
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.training.replicas import copies, order_after, placed_after

_AVERAGES, _COUNTERS, _PLANS = "placement/averages", "placement/counters", "placement/plans"
_COPIES = 2  # of a layer after each step


class Rebalanced:
    """A runtime (see train.loop) of a model whose experts are VExperts.

    The host waits for the loads of each step. The scheduler's state is part of the checkpoint. What
    is still to move is the difference between its placement and that of the runtime.
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
        self._placed: dict[str, Placement] = {}  # by the runtime's tables

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
            _PLANS: np.stack([state.placement.slots for state in states]),
        }

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """See Local. If the checkpoint has no state of this scheduler, a new one starts."""
        self._runtime.restore(tensors)
        self._start()
        slots = next(iter(self._placed.values())).slots
        if _PLANS not in tensors or tensors[_PLANS].shape[1:] != slots.shape:
            return
        found = (np.asarray(tensors[name]) for name in (_AVERAGES, _COUNTERS, _PLANS))
        for (table, experts), loads, (active, step, rest), plan in zip(
            self._tables.items(), *found, strict=True
        ):
            placement = Placement(plan, experts)
            self._states[table] = State(placement, loads[:, :experts], bool(active), step, rest)

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
            before moves; `moves`, number of copies; `move_seconds_predicted` of new plans;
            `move_seconds` in which the host started copies.
        """
        metrics = self._runtime.train(batch, compiling)
        loads = np.asarray(metrics.source_load, np.float64)
        rows = [
            self._follow(table, layer_loads[:, :num_experts])
            for (table, num_experts), layer_loads in zip(self._tables.items(), loads, strict=True)
        ]
        names = ("balance_ratio", "moves", "move_seconds_predicted", "move_seconds")
        columns = np.array(rows).transpose()
        return NestedMap(metrics, **dict(zip(names, columns, strict=True)))

    def _follow(self, table: str, loads: np.ndarray) -> Sequence[float]:
        """Plans the moves of one layer, and makes the next ones."""
        placed, predicted = self._placed[table], 0.0
        if loads.any():  # a skipped step has none
            self._states[table], decision = self._scheduler.step(self._states[table], loads)
            predicted = decision.adjustment_seconds
        few = copies(relocation(placed, self._states[table].placement))[:_COPIES]
        start = time.monotonic()
        if few:
            self._runtime.relocate(table, few)
            slots = placed_after(placed.slots, order_after(few, placed.slots.size))
            self._placed[table] = Placement(slots, placed.num_experts)
        ratio = balance_ratio(device_tokens(loads, placed))
        return ratio, len(few), predicted, time.monotonic() - start if few else 0.0

    def _start(self):
        """Scheduling from the runtime's placements."""
        tensors = self._runtime.state()
        self._placed = {
            table: Placement(np.asarray(tensors[f"theta/{table}"]), experts)
            for table, experts in self._tables.items()
        }
        self._states = {table: State(placed) for table, placed in self._placed.items()}


def _padded(loads: np.ndarray, most: int) -> np.ndarray:
    return np.pad(loads, [(0, 0), (0, most - loads.shape[1])])
