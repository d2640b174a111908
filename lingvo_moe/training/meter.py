"""The metrics and the speed of the steps since the last line of progress."""

import time

import numpy as np

from lingvo_moe.nn.nested_map import NestedMap


class Meter:
    """Collects the metrics of steps, and measures their time."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, step: int) -> None:
        """Starts to measure after step number `step`; forgets all earlier steps."""
        self._step = step
        self._metrics: list[NestedMap] = []
        self._counted = 0  # number of these metrics that `new_skips` has seen
        self._since, self._compiling, self._compiled = time.monotonic(), 0.0, 0
        self._compiles = False  # whether a program of the step that comes was compiled
        self._waited = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no step was added since the last `read`."""
        return not self._metrics

    def add(self, metrics: NestedMap) -> None:
        """Adds a step."""
        self._metrics.append(metrics)
        self._compiled += self._compiles
        self._compiles = False

    def waited(self, seconds: float) -> None:
        """Counts seconds that a step waited for its batch."""
        self._waited += seconds

    def compiled(self, seconds: float) -> None:
        """Excludes the step that is added next: one of its programs was compiled and first ran in
        so many seconds."""
        self._compiling += seconds
        self._compiles = True

    def leave_out(self, seconds: float) -> None:
        """Excludes seconds that were not spent in steps."""
        self._since += seconds

    def new_skips(self) -> list[bool]:
        """Whether each step since the last call was skipped; waits for the device."""
        new, self._counted = self._metrics[self._counted :], len(self._metrics)
        return [bool(np.asarray(metrics.skipped_steps)) for metrics in new]

    def read(self) -> tuple[NestedMap, float, float, float]:
        """The measurements since the last `read`, over at least one step; starts again. Returns the
        sums of the metrics, numpy, with `steps`, the number of steps that were not skipped; the
        seconds of all steps, without compiling; the number of all steps a second; and the seconds
        in which they waited for their batches."""
        first, *others = self._metrics
        count = 1 + len(others)
        summed = first.map(lambda *xs: sum(np.asarray(x) for x in xs), *others)
        seconds = max(self._seconds(count), 1e-9)
        useful, waited = count - round(float(summed.skipped_steps)), self._waited
        self.start(self._step + count)
        return NestedMap(summed, steps=useful), seconds, count / seconds, waited

    def _seconds(self, count):
        """The time of `count` steps without compiling; with it, if each of them compiled."""
        elapsed, measured = time.monotonic() - self._since, count - self._compiled
        if measured <= 0:
            return elapsed
        return (elapsed - self._compiling) * count / measured
