"""Recovery from steps that were not finite and so were skipped."""

from collections.abc import Iterable, Mapping
from typing import Any

_NAMED = 5  # number of tensors that a message names
CURE = "Try a lower learning rate, train.clip_norm, or activation_dtype='float32'."


class NotFiniteError(FloatingPointError):
    """Training cannot go on, because its steps are not finite.

    Attributes:
        step: the last step that was tried.
    """

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class SkippedSteps:
    """Counts skipped steps, and the times that training went back to a checkpoint for them.

    Attributes:
        in_a_row: number of consecutive skipped steps up to the newest step.
        returns: number of times in a row that training went back to the same checkpoint.
    """

    def __init__(self, limit: int, most_returns: int):
        """Counts from zero.

        Args:
            limit: number of skipped steps in a row after which training goes back.
            most_returns: number of times in a row that it may go back to the same checkpoint.
        """
        self._limit, self._most_returns = limit, most_returns
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
        return self.returns >= self._most_returns

    def saved(self) -> None:
        """Notes a new checkpoint."""
        self.returns = 0

    def went_back(self) -> None:
        """Notes that training went back."""
        self.in_a_row, self.returns = 0, self.returns + 1


def describe_not_finite(counts: Mapping[str, Any]) -> str:
    """Describes in one line which tensors are not finite.

    Args:
        counts: the runtime's count_not_finite: "sums/…" and "gradient/…" -> number of elements.
    """
    bad = {part: _bad(counts, part) for part in ("sums/", "gradient/")}
    gradients = sum(name.startswith("gradient/") for name in counts)
    sums = f"not finite in the loss and metrics: {_some(bad['sums/'])}" if bad["sums/"] else ""
    where = (
        f"not finite in the gradients of {len(bad['gradient/'])} of {gradients} weights: "
        f"{_some(bad['gradient/'])}"
        if bad["gradient/"]
        else "all gradients are finite"
    )
    return "; ".join(part for part in (sums or "the loss is finite", where) if part)


def _bad(counts, part):
    return [n.removeprefix(part) for n, count in counts.items() if n.startswith(part) and count]


def _some(names):
    more = f", … ({len(names)} in all)" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + more
