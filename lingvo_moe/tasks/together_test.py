import threading

import pytest

from lingvo_moe.tasks.together import check_equal
from lingvo_moe.training.checkpoint import ALONE, Process


def errors_of(*values):
    """The error of each of several processes, here threads; None without one."""
    barrier, given, errors = threading.Barrier(len(values)), {}, [None] * len(values)

    def run(i):
        def minimum(value):
            given[i] = value
            barrier.wait(10)
            least = min(given.values())
            barrier.wait(10)
            return least

        try:
            check_equal(values[i], Process(i, minimum))
        except ValueError as error:
            errors[i] = str(error)

    threads = [threading.Thread(target=run, args=[i]) for i in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return errors


def test_equal_values_and_a_process_alone():
    assert errors_of({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) == [None, None]
    check_equal({"a": "1"}, ALONE)


def test_each_process_says_what_it_has():
    first, second = errors_of({"a": "1", "rate": "0.1"}, {"a": "1", "rate": "0.2"})
    assert first == (
        "Processes that train together must have the same model, params and data; they differ. "
        "This one has rate=0.1. Give all the same flags."
    )
    assert "This one has rate=0.2." in second


@pytest.mark.parametrize("other", [{"a": "1"}, {"a": "1", "c": "2"}])
def test_other_params(other):
    for error in errors_of({"a": "1", "b": "2"}, other):
        assert "they differ in their models. Give all" in error
