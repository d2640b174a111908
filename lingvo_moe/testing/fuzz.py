"""Damaged files for tests: random bytes, and changed copies of valid files."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# 20 examples in the usual tests, 500 in the slow ones.
EXAMPLES = pytest.mark.parametrize(
    "examples", [20, pytest.param(500, marks=pytest.mark.slow)], ids=["few", "many"]
)
_NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([-1, 0, 1, 10**400])
_LEAVES = st.none() | st.booleans() | _NUMBERS | st.text() | st.sampled_from(["\ud800", "../../x"])
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_PLACE = st.integers(0, 2**31)


def check(examples: int, strategy: st.SearchStrategy, act: Callable[[Any], None]) -> None:
    """Calls `act` with this number of values from a strategy, the same in every run."""
    run = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(lambda value: act(value)))
    run()


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Random bytes, the truncated content, and the content with bytes replaced or inserted."""
    byte = st.tuples(_PLACE, st.binary(max_size=3), st.integers(0, 3))

    def change(places):
        result = bytearray(content)
        for place, new, length in places:
            start = place % (len(result) + 1)
            result[start : start + length] = new
        return bytes(result)

    cut = st.integers(0, len(content)).map(lambda end: content[:end])
    return st.binary(max_size=300) | cut | st.lists(byte, min_size=1, max_size=4).map(change)


def changed_json(content: bytes) -> st.SearchStrategy[bytes]:
    """As `damaged`, and JSON with values replaced, removed or put into a list."""
    changes = st.tuples(_PLACE, st.sampled_from(["replace", "remove", "wrap"]), _VALUES)

    def change(found):
        tree = [json.loads(content)]
        for place, kind, value in found:
            places = _places(tree)
            owner, key = places[place % len(places)]
            if kind == "remove" and owner is not tree:
                del owner[key]
            else:
                owner[key] = value if kind == "replace" else [owner[key]]
        return json.dumps(tree[0]).encode()

    return damaged(content) | st.lists(changes, min_size=1, max_size=3).map(change)


def _places(tree):
    """(container, key) for each value in a JSON tree."""
    found, left = [], [tree]
    while left:
        one = left.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        found += [(one, key) for key in keys]
        left += [one[key] for key in keys if isinstance(one[key], dict | list)]
    return found
