"""Progress lines: sentences done, speed and time left."""

import contextlib
import sys
import time
from collections.abc import Callable

_EVERY_SECONDS = 10.0


def lossy(report: Callable[[str], None]) -> Callable[[str], None]:
    """The function, but a line is lost if it cannot be written, as on a full disk or to a terminal
    that is gone: no work ends for that."""

    def report_or_lose(line):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the file is closed
            report(line)

    return report_or_lose


@lossy
def report(line: str) -> None:
    """Prints progress to standard error, because standard output is for results."""
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Counts sentences and reports them every ten seconds, and then also when all are done."""

    def __init__(
        self,
        report: Callable[[str], None],
        total: int | None = None,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`report` takes a line; total is None if unknown, then lines have no ETA; done are
        sentences of an earlier run."""
        self._report, self._total, self._clock = report, total, clock
        self._done = self._before = done
        self._start = self._last = clock()
        self._has_lines = False

    def __call__(self, count: int) -> None:
        """Counts sentences that are done."""
        self._done += count
        now = self._clock()
        ended = self._done == self._total and self._has_lines
        if now - self._last < _EVERY_SECONDS and not ended:
            return
        self._last, self._has_lines = now, True
        rate = (self._done - self._before) / (now - self._start)
        line = f"{self._done:,} sentences  {rate:,.1f} sentences/s"
        if self._total is not None:
            line = f"{self._done:,} of {self._total:,} sentences  {rate:,.1f} sentences/s"
            if self._done == self._total:
                line += f"  in {hours(now - self._start)}"
            elif rate:
                line += f"  ETA {hours((self._total - self._done) / rate)}"
        self._report(line)


def hours(seconds: float) -> str:
    """Seconds as H:MM:SS."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
