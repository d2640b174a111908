import itertools

import pytest

from lingvo_moe.testing.waiting import wait_until


def test_a_condition_that_becomes_true():
    calls = itertools.count()
    wait_until(lambda: next(calls) == 2, "the third call")
    assert next(calls) == 3


def test_a_condition_that_stays_false():
    with pytest.raises(TimeoutError, match=r"^Still not after 0\.02 s: pigs fly\.$"):
        wait_until(lambda: False, "pigs fly", seconds=0.02)
