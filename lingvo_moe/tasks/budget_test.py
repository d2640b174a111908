"""Suggested steps: the fit beside the runs that it is made from, and what a short run is told."""

import pytest

from lingvo_moe.tasks.budget import READING, suggestion

# pairs -> steps until the source use was 0.5, of tiny.MoE: docs/results.md
_MEASURED = {1: 212, 3: 239, 10: 398, 38: 474, 109: 1060, 117: 1205}


@pytest.mark.parametrize("pairs", _MEASURED)
def test_runs_are_near_the_fit(pairs):
    low, high = READING.range(pairs)
    assert low / 1.15 < _MEASURED[pairs] < high * 1.15


def test_a_run_of_a_tenth_of_the_suggested_steps_is_warned():
    suggested, *warnings = suggestion(4400, 2000.0, 117)
    assert suggested.startswith(
        "Suggested for real text: 3,800 to 5,700 steps or more. From measured "
    )
    assert not warnings
    _, warning = suggestion(440, 2000.0, 117)
    assert warning.startswith("Warning: 440 steps may be too few for translations to depend on")


@pytest.mark.parametrize("tokens", [100.0, 4e6])
def test_nothing_is_suggested_for_batches_that_were_not_measured(tokens):
    assert suggestion(10, tokens, 5) == []


def test_one_pair_is_named_in_the_singular():
    assert " a model of 1 pair begins to " in suggestion(1000, 2000.0, 1)[0]
