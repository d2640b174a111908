"""Agreement of all processes to stop at the same step."""

import time
from collections.abc import Callable

from lingvo_moe.training.checkpoint import ALONE, Process

_NOTICE_SECONDS = 5.0


class Interruption:
    """Whether any process was interrupted; all processes agree at the same step.

    Agreement waits for all steps in flight. So each process proposes the number of steps until the
    next agreement, those of a few seconds, and the smallest number is used. A signal is noticed
    within seconds, and short steps rarely wait. Steps that are taken again count as new ones.
    """

    def __init__(self, process: Process, clock: Callable[[], float] = time.monotonic):
        """clock: seconds."""
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
