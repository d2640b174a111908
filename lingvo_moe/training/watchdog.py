"""Reports when training stalls, with the stack traces of all threads."""

import faulthandler
import os
import threading
import time
from collections.abc import Callable

from lingvo_moe.training.phases import STARTING, Phase


class Watchdog:
    """Reports phases of training that take too long; a thread checks them.

    It is a context manager: the thread runs until it is left. A stall is reported once with the
    traces, and once more when training continues.
    """

    def __init__(
        self,
        seconds: float | None,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts no thread yet.

        Args:
            seconds: a phase that takes longer is a stall; None for no reports.
            report: takes each line.
            clock: returns seconds.
        """
        self._seconds, self._report, self._clock = seconds, report, clock
        self._phase, self._since, self._stalled = STARTING, clock(), False
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None:
            self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def enter(self, phase: Phase) -> None:
        """Begins a phase."""
        with self._lock:
            now = self._clock()
            if self._stalled:
                self._report(
                    f"Training goes on after {now - self._since:.0f} s {self._phase.text}."
                )
            self._phase, self._since, self._stalled = phase, now, False

    def check(self) -> None:
        """Reports a stall; the thread calls it."""
        with self._lock:
            waited = self._clock() - self._since
            limit = self._seconds
            if limit is None or self._stalled or not self._phase.watched or waited < limit:
                return
            self._stalled = True
            self._report(
                f"warning: Training stalls: {waited:.0f} s {self._phase.text} (train.stall_seconds="
                f"{limit:g}). Stack traces of all threads:\n{stack_traces()}"
            )

    def _run(self):
        while not self._stop.wait(min(1.0, (self._seconds or 1.0) / 4)):
            self.check()


def stack_traces() -> str:
    """The stack traces of all Python threads, the innermost call first."""
    # In memory, because a full or broken disk may be the cause of a stall.
    with open(os.memfd_create("stacks"), "w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().rstrip()
