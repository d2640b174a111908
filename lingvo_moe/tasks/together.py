"""Processes that train together must have the same model and the same data."""

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingvo_moe.core.fields import shortened
from lingvo_moe.training.process import Process


def check_equal(values: Mapping[str, str], process: Process) -> None:
    """Checks that all processes call this with equal values; waits for them.

    Each process compiles its own program with its params as constants, so different ones would
    make copies of one weight differ, or one process wait for another without end.

    Args:
        values: name -> text, such as a param and its value.
        process: this process.

    Raises:
        ValueError: a value differs; in all processes, each with its own value.
    """

    def are_equal(text):
        return process.all_have(int.from_bytes(hashlib.sha256(text.encode()).digest()[:3]))

    names = sorted(values)
    if are_equal(repr([(name, values[name]) for name in names])):
        return
    # Only with equal names do all processes go through the same comparisons.
    different = [n for n in names if not are_equal(values[n])] if are_equal(repr(names)) else []
    given = ", ".join(f"{name}={shortened(values[name])}" for name in different)
    raise ValueError(
        f"Processes that train together must have the same model, params and data; they differ"
        f"{f'. This one has {given}' if given else ' in their models'}. Give all the same flags."
    )


def in_full(value: Any) -> str:
    """The text of a value for `check_equal`, with all digits of all numbers of its arrays."""
    with np.printoptions(threshold=sys.maxsize, precision=17):
        return repr(value)
