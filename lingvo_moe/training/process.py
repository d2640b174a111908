"""One of the processes that train together, and what they agree on."""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NOTICE_SECONDS = 5.0  # between two agreements


@dataclasses.dataclass(frozen=True)
class Process:
    """One of the processes that train together and share the directory of checkpoints."""

    index: int = 0  # the number of this process, from 0
    # waits until every process has called it, and returns the smallest of their values
    minimum: Callable[[int], int] = lambda value: value
    # waits until every process has called it, and returns the texts of all, by index. It does not
    # use the devices. None if there is no such function.
    share: Callable[[str], Sequence[str]] | None = None

    def all_have(self, value: int) -> bool:
        """Whether every process calls this with the same value; waits for them."""
        return self.minimum(value) == -self.minimum(-value)

    def check_equal(self, value: Any) -> None:
        """Checks that all processes call this with equal values; waits for them.

        Each process compiles its own program with its params as constants, so different ones would
        make copies of one weight differ, or one process wait for another without end.

        Args:
            value: of any type; its text is compared, with all digits of its arrays.

        Raises ValueError: a value differs; in all processes.
        """
        with np.printoptions(threshold=sys.maxsize, precision=17):
            digest = hashlib.sha256(repr(value).encode()).digest()
        if not self.all_have(int.from_bytes(digest[:3])):
            raise ValueError(
                "Processes that train together must have the same model, params and data, and they "
                "differ. Give all the same flags."
            )

    @property
    def background(self) -> "Process":
        """This process, for use in another thread while steps run."""
        share = self.share
        if share is None:
            return self
        return dataclasses.replace(self, minimum=lambda value: min(map(int, share(str(value)))))

    def cause(self, error: Exception | None) -> str:
        """The error of a stage that all processes ran. Every process must call this.

        Args:
            error: of this process; None if it had none.
        """
        mine = "" if error is None else str(error) or type(error).__name__
        texts = self.share(mine) if self.share else ()
        theirs = (f"process {index}: {text}" for index, text in enumerate(texts) if text)
        return mine or next(theirs, "another process failed, see its log")


ALONE = Process()


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
