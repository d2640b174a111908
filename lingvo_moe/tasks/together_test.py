from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lingvo_moe.placement.policy_maker import PolicyMaker
from lingvo_moe.placement.scheduler import Scheduler
from lingvo_moe.tasks.together import check_equal, in_full
from lingvo_moe.testing.placements import make_cost
from lingvo_moe.testing.shards import Barrier
from lingvo_moe.training.process import ALONE, Process


def errors_of(*values):
    """The error of each of several processes, here threads; None without one."""
    barrier = Barrier(len(values))

    def run(i):
        try:
            check_equal(values[i], Process(i, barrier.minimum_of(i)))
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(run, range(len(values))))


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


def test_texts_of_schedulers_that_plan_otherwise_differ():
    def text(rate):
        cost = make_cost(64)
        cost.bandwidth[40, 41] = rate
        return in_full(Scheduler(maker=PolicyMaker(cost=cost)))

    assert text(10.0) == text(10.0) != text(np.nextafter(10.0, 11.0))
