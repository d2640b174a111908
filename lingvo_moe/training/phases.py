"""What training does at each moment; goodput and the watchdog listen."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Phase(NamedTuple):
    """A kind of work."""

    name: str  # as goodput counts it
    text: str  # what the watchdog says, such as "waiting for the input"
    watched: bool = True  # False for one that may take any time


STEPS = Phase("steps", "in a step")
COMPILING = Phase("compiling", "compiling", watched=False)
INPUT = Phase("input", "waiting for the input")
SAVING = Phase("saving", "saving")
EVALUATION = Phase("evaluation", "evaluating", watched=False)
STARTING = Phase("starting", "starting", watched=False)
PHASES = (STEPS, COMPILING, INPUT, SAVING, EVALUATION, STARTING)


class Phases:
    """Tells listeners which phase begins, from STARTING on; the phase before ends."""

    def __init__(self, *listeners: Callable[[Phase], None]):
        self._now, self._listeners = STARTING, listeners

    def enter(self, phase: Phase) -> None:
        """Begins a phase."""
        self._now = phase
        for listener in self._listeners:
            listener(phase)

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """A phase that lasts as long as the block; then the one before goes on."""
        before = self._now
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)
