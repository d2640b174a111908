"""The forecast of a run, with numbers by hand."""

import dataclasses

import numpy as np
import pytest

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.curriculum import sampling_probabilities
from lingvo_moe.data.modifiers.casing import Casing
from lingvo_moe.data.pipeline import InputParams, Part, TrainInput
from lingvo_moe.tasks.exposure import Exposure, RunExposure, expose
from lingvo_moe.testing.tiny_world import dataset


@pytest.mark.parametrize(
    ("temperature", "epochs"),
    [
        (1.0, (2.0, 2.0)),  # by size: 1800 of 900, 200 of 100
        (2.0, (1500 / 900, 5.0)),  # √900 : √100 = 3 : 1, so 1500 of 900, 500 of 100
    ],
)
def test_epochs_follow_from_sizes_and_temperature(temperature, epochs):
    seen = expose({"b-en": 100, "a-en": 900}, sampling_probabilities([100, 900], temperature), 2000)
    assert [(one.pair, one.examples) for one in seen] == [("a-en", 900), ("b-en", 100)]
    assert [one.epochs for one in seen] == pytest.approx(epochs)


def test_few_pairs_are_a_table():
    forecast = RunExposure(
        1000, 20.0, 400.0, [Exposure("a-en", 40000, 0.4), Exposure("b-en", 20, 200)], 0.2
    )
    assert forecast.lines() == [
        "This run: 1,000 steps of about 20 examples and 400 target tokens, 0.40M target tokens "
        "in all. 20.0% of the drawn examples do not fit a row and are left out.",
        "pair  examples  epochs",
        "----------------------",
        "a-en    40,000     0.4",
        "b-en        20   200.0",
    ]


def test_many_pairs_are_a_table_by_tier():
    # Thirds of 13 pairs: (13 + 1) // 3 = 4, so 4, 5 and 4.
    sizes = [1300 - 100 * i for i in range(13)]
    forecast = RunExposure(10, 1, 1, [Exposure(f"{s}-en", s, 1300 / s) for s in sizes])
    assert forecast.lines()[1:] == [
        "tier  pairs        examples       epochs",
        "----------------------------------------",
        "high      4  1,000 to 1,300   1.0 to 1.3",
        "mid       5      500 to 900   1.4 to 2.6",
        "low       4      100 to 400  3.2 to 13.0",
    ]


def test_what_a_batch_holds_is_measured_and_the_input_stays_where_it_was():
    params = InputParams(batch_size=4, source_length=48, target_length=32, pairs=("qna-en",))
    source, same = (TrainInput(dataset(), params, seed=3) for _ in range(2))
    forecast = RunExposure.of(source, 400)
    batches = [same.next_batch() for _ in range(400)]
    examples = sum(int(batch.target_segment_ids.max(axis=1).sum()) for batch in batches)
    (seen,) = forecast.pairs
    assert seen.examples == dataset().pair("qna-en").examples["train"]
    drawn = examples + same.skipped
    assert seen.epochs == pytest.approx(drawn / seen.examples, rel=0.05)
    assert forecast.examples == pytest.approx(examples / 400, rel=0.05)
    assert forecast.tokens == pytest.approx(
        np.mean([np.count_nonzero(batch.target_ids) for batch in batches]), rel=0.05
    )
    for batch in batches[:3]:
        NestedMap(batch).map(np.testing.assert_array_equal, source.next_batch())


def test_epochs_count_the_draws_that_are_left_out():
    # Rows of 16 target tokens, which many examples do not fit.
    params = InputParams(batch_size=4, source_length=48, target_length=16, temperature=2.0)
    source = TrainInput(dataset(), params, seed=3)
    forecast = RunExposure.of(source, 2000)
    assert source.skipped == 0
    for _ in range(2000):
        source.next_batch()
    drawn = source.state()["counters"].sum(axis=0)
    names = [stream.name for stream in source.curriculum.streams]
    assert source.skipped > 0.2 * drawn.sum()
    assert forecast.too_long == pytest.approx(source.skipped / drawn.sum(), abs=0.03)
    for one in forecast.pairs:
        epochs = drawn[names.index(one.pair)] / one.examples
        assert one.epochs == pytest.approx(epochs, rel=0.05), one.pair


def test_a_modifier_whose_examples_do_not_fit_a_row_is_named():
    # Sources have 3 to 20 pieces. In capitals, which the vocabulary does not know, they have more.
    params = InputParams(batch_size=4, source_length=32, target_length=64, pairs=("qna-en",))
    params = dataclasses.replace(params, modifiers=(Casing(share=0.5, sides="source"),))
    forecast = RunExposure.of(TrainInput(dataset(), params, seed=3), 2000)
    assert 0.1 < forecast.unchanged["Casing"] < 1
    assert forecast.lines()[-1].startswith("Casing leaves ")
    assert "as they are: changed, they fit no row" in forecast.lines()[-1]


def test_each_of_two_processes_forecasts_the_whole_run():
    params = InputParams(batch_size=8, target_length=12, virtual_shards=2, temperature=2.0)
    rows = np.repeat(np.eye(2, dtype=bool), 4, axis=1)  # 4 rows each
    parts = [None, Part.of(rows, 0, 2), Part.of(rows, 1, 2)]
    whole, *halves = (
        RunExposure.of(TrainInput(dataset(), params, seed=3, part=part), 100) for part in parts
    )
    for half in halves:
        assert half.examples == pytest.approx(whole.examples, rel=0.03)
        assert half.tokens == pytest.approx(whole.tokens, rel=0.03)
        expected = [one.epochs for one in whole.pairs]
        assert [one.epochs for one in half.pairs] == pytest.approx(expected, rel=0.03)
