"""Suggested steps: the fit beside the runs that it is made from, and what a short run is told."""

import pytest

from lingvo_moe.tasks.budget import READING, suggestion

# pairs -> steps until the source use was 0.5, of tiny.MoE: docs/results.md
_MEASURED = {1: 166, 3: 174, 10: 265, 38: 332, 109: 593, 117: 673}


@pytest.mark.parametrize("pairs", _MEASURED)
def test_runs_are_near_the_fit(pairs):
    low, high = READING.range(pairs)
    assert low / 1.15 < _MEASURED[pairs] < high * 1.15


def test_a_run_of_a_tenth_of_the_suggested_steps_is_warned():
    suggested, *warnings = suggestion(4000, 2000.0, 117)
    assert suggested.startswith(
        "Suggested minimum for real text: between 4,000 and 5,400 steps. From measured "
    )
    assert not warnings
    _, warning = suggestion(400, 2000.0, 117)
    assert warning.startswith("Warning: 400 steps may be too few for translations to depend on")


@pytest.mark.parametrize("tokens", [100.0, 4e6])
def test_nothing_is_suggested_for_batches_that_were_not_measured(tokens):
    assert suggestion(10, tokens, 5) == []


def test_more_pairs_than_were_measured_are_named():
    assert (
        "From runs with at most 117 pairs: a model of 1,200 pairs " in suggestion(9e4, 1e3, 1200)[0]
    )
    assert "From measured runs: a model of 117 pairs " in suggestion(9e4, 1e3, 117)[0]


def test_one_pair_is_named_in_the_singular():
    assert " a model of 1 pair begins to " in suggestion(1000, 2000.0, 1)[0]
