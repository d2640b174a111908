"""Writes the tables of experiments into their places in the pages of docs.

A place is between the lines `<!-- MARK -->` and `<!-- end -->`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import write_whole


def merge_table(page: Path, mark: str, table: Table, order: Sequence[str] = ()) -> None:
    """Writes a table into its place in a page; rows of the page that it lacks stay.

    So runs on different days or machines share a table. Rows are known by their first cell.

    Args:
        page: a page of Markdown; without the place it stays as it is.
        mark: of the place.
        table: the new rows. New columns come after those of the page.
        order: first cells, or how they begin; rows are sorted by the longest that fits.
    """
    place = _place(mark).search(page.read_text("utf-8"))
    lines = [_cells(line) for line in place[0].splitlines()[1:-1]] if place else []
    old = Table(lines[0], lines[2:]) if lines else Table((), ())
    columns = list(dict.fromkeys((*old.columns, *table.columns)))
    rows = {}
    for row in (*old.to_json(), *table.to_json()):
        cells = [row.get(column, "") for column in columns]
        rows[cells[0]] = cells

    def place_of(row):
        begins = [begin for begin in order if row[0].startswith(begin)]
        return order.index(max(begins, key=len)) if begins else len(order)

    merged = Table(columns, sorted(rows.values(), key=place_of))
    replace_table(page, mark, merged.to_markdown())


def replace_table(page: Path, mark: str, table: str) -> None:
    """Replaces the text of a place; a page without the place stays as it is."""
    text = page.read_text("utf-8")
    write_whole(page, _place(mark).sub(lambda found: f"{found[1]}{table}\n{found[2]}", text))


def _place(mark: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.S)


def _cells(line: str) -> list[str]:
    """The cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
