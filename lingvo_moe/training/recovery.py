"""Recovery from steps that were not finite and so were skipped."""

from collections.abc import Iterable

_LIMIT = 2  # times in a row that training may go back to the same checkpoint
CURE = "Try a lower learning rate, train.clip_norm, or activation_dtype='float32'."


class SkippedSteps:
    """Counts skipped steps, and the times that training went back to a checkpoint for them.

    Attributes:
        in_a_row: number of consecutive skipped steps up to the newest step.
        returns: number of times in a row that training went back to the same checkpoint.
    """

    def __init__(self, limit: int):
        """limit: number of skipped steps in a row after which training goes back."""
        self._limit = limit
        self.in_a_row = self.returns = 0

    def add(self, flags: Iterable[bool]) -> None:
        """Adds steps, in order; true for a skipped one."""
        for skipped in flags:
            self.in_a_row = self.in_a_row + 1 if skipped else 0

    @property
    def too_many(self) -> bool:
        """Whether training must go back."""
        return self.in_a_row >= self._limit

    @property
    def hopeless(self) -> bool:
        """Whether training may not go back again."""
        return self.returns >= _LIMIT

    def saved(self) -> None:
        """Notes a new checkpoint."""
        self.returns = 0

    def went_back(self) -> None:
        """Notes that training went back."""
        self.in_a_row, self.returns = 0, self.returns + 1
