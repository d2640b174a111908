"""Waits for what other processes do."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Returns when a condition is true.

    Args:
        condition: is called again and again.
        what: the condition in words, for the error.
        seconds: the time limit.

    Raises:
        TimeoutError: the condition is still false at the time limit.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"Still not after {seconds:g} s: {what}.")
        time.sleep(0.01)
