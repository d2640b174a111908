"""Tests of the tables of real_text.py and learning.py, with numbers by hand."""

import json
import re
import shlex
from pathlib import Path

import pytest
from _pages import check_places, merge_table
from learning_rows import ROWS
from learning_tables import fit_of_budgets, study_table, write_tables
from real_text import curve_table, draw_curve, sizes_table

from lingvo_moe.core.params import to_fields
from lingvo_moe.reporting.table import Table
from lingvo_moe.training.summaries import SummaryWriter

_PAGE = Path(__file__).parents[1] / "docs" / "results.md"
_MARKS = ("scale", "rates", "peer", "budget", "budget_muon", "recipe", "knob")


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


def _table_of_page(mark):
    check_places(_PAGE, [mark])
    (text,) = re.findall(f"<!-- {mark} -->\n(.*?)<!-- end -->", _PAGE.read_text("utf-8"), re.S)
    return [line.split("|")[1].strip() for line in text.splitlines()[2:]]


@pytest.mark.parametrize("study", _MARKS)
def test_a_table_of_the_page_has_only_rows_that_the_command_makes(study):
    rows = [row for row in ROWS if row.study == study]
    searches = {f"{row.label}, {search}" for row in rows for search in row.searches}
    labels = _table_of_page(f"learning {study}")
    assert labels
    assert set(labels) <= searches | {row.label for row in rows}


def test_commands_of_the_page_choose_rows():
    commands = re.findall(r"^python benchmarks/learning\w*\.py .*", _PAGE.read_text("utf-8"), re.M)
    texts = [
        word.removeprefix("--only=")
        for command in commands
        for word in shlex.split(command, comments=True)
        if word.startswith("--only=")
    ]
    assert texts
    for text in texts:
        assert any(text in row.name for row in ROWS), text


def test_rows_of_the_page_stay_and_new_ones_are_put_in_order(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t -->\n|  | x |\n| --- | --- |\n| two | 2 |\n<!-- end -->\nb\n")
    table = Table(["", "x", "y"], [["one", "1", "7"], ["two, more", "3", "9"]])
    merge_table(page, "t", table, ["one", "two"])
    assert page.read_text().splitlines()[2:-2] == [
        "|  | x | y |",
        "| --- | --- | --- |",
        "| one | 1 | 7 |",
        "| two | 2 |  |",
        "| two, more | 3 | 9 |",
    ]
    with pytest.raises(SystemExit, match="has 0 places for the table 'other', expected 1"):
        merge_table(page, "other", table)


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


def test_without_a_mean_of_weights_the_cell_is_empty():
    rows = [[_run(_row(f"knob/{name}"))] for name in ("temperature 1", "EMA 0.99")]
    rows[1][0]["dev_loss_of_mean"] = None
    assert [row[3] for row in study_table("knob", rows).rows] == ["2.250", ""]


def test_the_fit_finds_the_power():
    # The source use is 0.5 half-way between 0.2 and 0.8 on a logarithmic scale of steps.
    rows = {1: "1 pair, ko", 3: "3 pairs, es, nl and it", 10: "10 pairs"}
    runs = []
    for pairs, name in rows.items():
        steps = 100 * pairs**0.5
        curve = [[steps / 2, 0, 3.0, 0.2], [steps * 2, 0, 2.0, 0.8]]
        runs.append(_run(_row(f"budget_muon/tiny.MoE, {name}"), curve=curve))
    assert fit_of_budgets(runs) == pytest.approx((100, 0.5, 1.0))


def test_each_model_has_a_fit_of_its_own(tmp_path, capsys):
    for name, when in {
        "tiny.MoE, 1 pair, ko": 100,
        "tiny.MoE, 3 pairs, es, nl and it": 300,
        "tiny.MoE, 10 pairs": 1000,
        "small.MoE, 1 pair, ko": 400,
    }.items():
        path = tmp_path / "runs" / "budget" / f"{name}.1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        curve = [[when / 2, 5e4, 3.0, 0.2], [when * 2, 2e5, 2.0, 0.8]]
        path.write_text(json.dumps(_run(_row(f"budget/{name}"), curve=curve)))
    write_tables(tmp_path, None)
    fits = [line for line in capsys.readouterr().out.splitlines() if "steps = " in line]
    assert fits == ["tiny.MoE: steps = 100 · pairs^1.00, × or ÷ 1.00"]


def test_runs_with_other_params_are_left_out(tmp_path, capsys):
    row = _row("knob/temperature 1")
    path = tmp_path / "runs" / f"{row.name}.1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(_run(row)))
    write_tables(tmp_path, None)
    assert "| temperature 1 | 1 | 2.000 |" in capsys.readouterr().out
    other = to_fields(row.params) | {"input.temperature": "2.0"}
    path.write_text(json.dumps(_run(row, params=other)))
    write_tables(tmp_path, None)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path} is left out: its row has other params now")
    assert "temperature 1 |" not in printed


def test_the_curve_has_what_was_measured(tmp_path):
    writer = SummaryWriter(tmp_path / "events", print)
    writer.scalars(500, {"dev/loss": 3.126})
    writer.scalars(1000, {"dev/loss": 2.5, "dev/bleu": 12.26})
    writer.close()
    table = curve_table(tmp_path)
    assert table.columns == ["step", "500", "1000"]
    assert table.rows == [["dev loss", "3.13", "2.50"], ["dev BLEU", "", "12.3"]]
    lines = [axes.lines[0].get_xydata().tolist() for axes in draw_curve(table).axes]
    assert lines == [[[500, 3.13], [1000, 2.5]], [[1000, 12.3]]]


def test_each_pair_with_several_baselines_has_the_highest_dev_bleu_of_each(tmp_path):
    for model, values in {"wide": (1.0, 9.26, 8.0), "narrow": (10.0,)}.items():
        writer = SummaryWriter(tmp_path / model / "de-en" / "events", print)
        for step, bleu in enumerate(values):
            writer.scalars(step, {"dev/bleu": bleu})
        writer.close()
    (tmp_path / "narrow" / "fr-en").mkdir()
    table = sizes_table(tmp_path, ["wide", "narrow"], ["fr-en", "de-en"])
    assert table.columns == ["pair", "dev BLEU, wide", "dev BLEU, narrow"]
    assert table.rows == [["de-en", "9.3", "10.0"]]
    assert sizes_table(tmp_path, ["narrow"], ["de-en"]).rows == []
