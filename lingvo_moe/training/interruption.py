"""Agreement of all processes to stop at the same step."""

import time
from collections.abc import Callable

from lingvo_moe.training.process import ALONE, Process

_NOTICE_SECONDS = 5.0


class Interruption:
    """Finds out whether any process was interrupted, so that all stop at the same step.

    To agree, all processes wait until their started steps have finished, so they agree only every
    few seconds. At each agreement every process proposes the number of steps until the next one;
    the smallest is used. Repeated steps count as new ones.
    """

    def __init__(self, process: Process, clock: Callable[[], float] = time.monotonic):
        """clock: returns seconds."""
        self._process, self._clock = process, clock
        self._step, self._due, self._stride = 0, 0, 1
        self._asked: tuple[int, float] | None = None

    def agreed(self, signal: int | None) -> int | None:
        """The signal for which to stop before this step, or None.

        Args:
            signal: number of the signal that this process received, if any. All processes call this
                once for each step.
        """
        if self._process is ALONE:
            return signal
        step, self._step = self._step, self._step + 1
        if step < self._due:
            return None
        ahead = self._process.minimum(-signal if signal else self._stride)
        now = self._clock()
        if self._asked:
            steps, seconds = step - self._asked[0], now - self._asked[1]
            self._stride = max(1, int(_NOTICE_SECONDS * steps / max(seconds, 1e-9)))
        self._due, self._asked = step + ahead, (step, now)
        return -ahead if ahead < 0 else None
