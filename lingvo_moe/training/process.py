"""One of the processes that train together, and what they agree on."""

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


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

    def warns(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """What takes warnings of this process: `report`; of a process after the first, a line on
        standard error, because its `report` is silent."""
        if not self.index:
            return report
        return lambda line: print(f"process {self.index}: {line}", file=sys.stderr, flush=True)


ALONE = Process()
