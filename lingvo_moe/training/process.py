"""One of the processes that train together, and what they agree on."""

import dataclasses
import sys
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Process:
    """One of the processes that train together and share the directory of checkpoints.

    Attributes:
        index: the number of this process, from 0.
        minimum: waits until every process has called it, and returns the smallest of their values.
        share: waits until every process has called it, and returns the texts of all, by index. It
            does not use the devices. None if there is no such function.
    """

    index: int = 0
    minimum: Callable[[int], int] = lambda value: value
    share: Callable[[str], Sequence[str]] | None = None

    def all_have(self, value: int) -> bool:
        """Whether every process calls this with the same value; waits for them."""
        return self.minimum(value) == -self.minimum(-value)

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
        standard error, because its `report` is silent.
        """
        if not self.index:
            return report
        return lambda line: print(f"process {self.index}: {line}", file=sys.stderr, flush=True)


ALONE = Process()
