"""Tests of the tables of real_text.py and learning.py, with numbers by hand."""

import pytest

from experiments.learning_rows import ROWS
from experiments.learning_tables import _until, fit_of_budgets, study_table
from experiments.real_text import curve_table, draw_curve
from experiments.tables import merge_csv
from lingvo_moe.config.params import to_fields
from lingvo_moe.reporting.table import Table
from lingvo_moe.training.summaries import SummaryWriter


def _run(row, seed=1, **fields):
    """The results of a run, as learning_run.make writes them."""
    return {
        "row": row.name,
        "seed": seed,
        "params": to_fields(row.params),
        "input": to_fields(row.params.input),
        "num_pairs": 12,
        "until_source_use": row.until_source_use,
        "dev_loss": 2.0,
        "dev_loss_of_mean": 2.25,
        "curve": [[50, 5e4, 3.0, 0.2], [100, 1e5, 2.0, 0.8]],
        "searches": list(row.searches),
        "scores": {},
    } | fields


def _row(name):
    (row,) = (row for row in ROWS if row.name == name)
    return row


def test_rows_have_different_names_and_params_that_exist():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.params.train.max_steps == row.steps


def test_rows_of_the_file_stay_and_new_ones_are_put_in_order(tmp_path):
    path = tmp_path / "t.csv"
    merge_csv(path, Table(["", "x"], [["two", "2,000"]]))
    table = Table(["", "x", "y"], [["one", "1", "7"], ["two, more", "3", "9"]])
    merge_csv(path, table, ["one", "two"])
    assert path.read_text().splitlines() == [
        ",x,y",
        "one,1,7",
        'two,"2,000",',
        '"two, more",3,9',
    ]


def test_a_row_is_the_mean_of_its_seeds():
    row = _row("scale/dense")
    curve = [[50, 5e4, 3.0, 0.2], [100, 2e5, 2.0, 0.8]]
    second = _run(row, 2, dev_loss=2.5, dev_loss_of_mean=2.75, curve=curve)
    (cells,) = study_table("scale", [[_run(row), second]]).to_json()
    # The standard deviation of 2 and 2.5 is 0.5 / √2. The dev loss is 2 after 0.1M and 0.2M tokens.
    assert cells == {
        "": "dense",
        "seeds": "2",
        "dev loss": "2.250 ± 0.354",
        "dev loss, last 5 weights averaged": "2.500",
        "M tokens to 2.0": "0.15",
    }


def test_the_fit_finds_the_power():
    # The source use is 0.5 half-way between 0.2 and 0.8 on a logarithmic scale of steps.
    assert _until([(50, 0.4), (100, 0.6), (150, 0.45)], 0.5) == 50
    rows = {1: "1 pair, ko", 3: "3 pairs, es, nl and it", 10: "10 pairs"}
    runs = []
    for pairs, name in rows.items():
        steps = 100 * pairs**0.5
        curve = [[steps / 2, 0, 3.0, 0.2], [steps * 2, 0, 2.0, 0.8]]
        runs.append(_run(_row(f"budget_muon/tiny.MoE, {name}"), curve=curve))
    assert fit_of_budgets(runs) == pytest.approx((100, 0.5, 1.0))


def test_the_curve_has_what_was_measured(tmp_path):
    writer = SummaryWriter(tmp_path / "events")
    writer.scalars(500, {"dev/loss": 3.126})
    writer.scalars(1000, {"dev/loss": 2.5, "dev/bleu": 12.26})
    writer.close()
    table = curve_table(tmp_path)
    assert table.columns == ["step", "500", "1000"]
    assert table.rows == [["dev loss", "3.13", "2.50"], ["dev BLEU", "", "12.3"]]
    lines = [axes.lines[0].get_xydata().tolist() for axes in draw_curve(table).axes]
    assert lines == [[[500, 3.13], [1000, 2.5]], [[1000, 12.3]]]
