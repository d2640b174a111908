"""Goodput: the share of the wall clock that training spends in useful steps."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from lingvo_moe.system.files import read_json, remove_partials, write_whole
from lingvo_moe.training import phases
from lingvo_moe.training.phases import Phase

_STEPS, _STOPPED = phases.STEPS.name, "stopped"
_KINDS = (*(phase.name for phase in phases.PHASES), _STOPPED)
FILE = "goodput.json"


class Goodput:
    """The seconds that a run and its restarts spent in each phase.

    When a checkpoint is complete, the seconds up to the start of its save are written to the file.
    If a run does not finish, the time from there to the next start counts as stopped, with the
    steps that are repeated.
    """

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        """Continues the file of earlier runs.

        Args:
            path: the file; None for no file.
            clock: returns seconds, for durations within this run.
            wall: returns seconds since 1970, for the time between runs.
        """
        self._path, self._clock, self._wall = path, clock, wall
        self._seconds = dict.fromkeys(_KINDS, 0.0)
        self._kind, self._since = phases.STARTING.name, clock()
        self._read()

    def enter(self, phase: Phase) -> None:
        """Counts the time from now on as this phase."""
        self._count()
        self._kind = phase.name

    def save(self) -> Callable[[], None]:
        """Begins a save of the steps so far. Returns a function to call, in any thread, when the
        checkpoint is complete. It writes the file."""
        self._count()
        seconds, until = dict(self._seconds), self._wall()

        return lambda: self._write(seconds, until)

    def end(self, finished: bool) -> None:
        """Ends the run; all its steps are saved. After a finished run no time counts as stopped."""
        self._count()
        self._write(self._seconds, None if finished else self._wall())

    def shares(self) -> dict[str, float]:
        """Kind -> its share of all seconds, from the first start on."""
        self._count()
        total = max(sum(self._seconds.values()), 1e-9)
        return {kind: seconds / total for kind, seconds in self._seconds.items()}

    def line(self) -> str:
        """A line of progress: the goodput, and where the rest of the time went."""
        shares = self.shares()
        rest = sorted(((s, kind) for kind, s in shares.items() if kind != _STEPS), reverse=True)
        text = ", ".join(f"{kind} {100 * share:.1f} %" for share, kind in rest if share >= 0.0005)
        return f"Goodput {100 * shares[_STEPS]:.1f} % of the wall clock in useful steps; {text}"

    def _count(self):
        now = self._clock()
        self._seconds[self._kind] += now - self._since
        self._since = now

    def _write(self, seconds, until):
        if self._path is not None:
            content = {"seconds": seconds, "until": until}
            with contextlib.suppress(OSError):  # training continues without the file
                write_whole(self._path, json.dumps(content, indent=1))

    def _read(self):
        """Adds the seconds of earlier runs; a damaged file is ignored."""
        if self._path is None:
            return
        remove_partials(self._path)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            content = read_json(self._path)
            until = content["until"]
            gap = 0.0 if until is None else max(0.0, self._wall() - until)
            self._seconds = {kind: float(content["seconds"][kind]) for kind in _KINDS}
            self._seconds[_STOPPED] += gap
