from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lingvo_moe.testing.shards import Barrier
from lingvo_moe.training.process import ALONE, Process


def test_causes_of_failures():
    """A process prefers its own error; others name the process and its error."""
    process = Process(1, share=lambda text: ["", text, "disk full"])
    assert process.cause(None) == "process 2: disk full"
    assert process.cause(OSError("no memory")) == "no memory"
    assert process.cause(OSError()) == "OSError"
    assert Process(1).cause(None) == "another process failed, see its log"


def test_the_minimum_in_the_background():
    process = Process(1, minimum=None, share=lambda text: ["4", text, "-2"])
    assert process.background.minimum(3) == -2
    assert ALONE.background is ALONE


def _differ(*values):
    """Whether each of several processes, here threads, finds that their values differ."""
    barrier = Barrier(len(values))

    def run(i):
        try:
            Process(i, barrier.minimum_of(i)).check_equal(values[i])
        except ValueError:
            return True
        return False

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(run, range(len(values))))


def test_values_that_differ_in_a_digit_are_an_error_in_all():
    one, other = np.full((40, 40), 0.1), np.full((40, 40), 0.1)
    assert _differ({"a": one}, {"a": other}) == [False, False]
    other[20, 20] = np.nextafter(0.1, 1.0)
    assert _differ({"a": one}, {"a": other}) == [True, True]
    ALONE.check_equal(one)
