"""A conversation with a program that reads standard input and writes standard output."""

import os
import select
import sys
import threading
from collections.abc import Callable, Sequence

import pytest


def converse(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[], None], lines: Sequence[bytes]
) -> list[bytes]:
    """The line that a program answers to each line; the next is written after the answer.

    Args:
        monkeypatch: changes the standard streams.
        program: runs in a thread, until its input ends.
        lines: of the input, with their ends.

    Raises:
        TimeoutError: there is no answer in two minutes.
    """
    (read, written), (answered, writes) = os.pipe(), os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read, encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", os.fdopen(writes, "w", encoding="utf-8"))
    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    answers = []
    with open(written, "wb", buffering=0) as to, open(answered, "rb", buffering=0) as out:
        for line in lines:
            to.write(line)
            if not select.select([out], [], [], 120)[0]:
                raise TimeoutError(line)
            answers.append(out.readline())
    thread.join()
    return answers
