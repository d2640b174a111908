"""Writes the tables of benchmarks into the pages of docs."""

import re
from collections.abc import Sequence
from pathlib import Path

from lingvo_moe.core.files import write_whole
from lingvo_moe.reporting.table import Table


def check_places(page: Path, marks: Sequence[str]) -> None:
    """Checks that a page has the comments `<!-- MARK -->` and `<!-- end -->` of each table.

    Raises:
        SystemExit: the page does not have the comments of a mark exactly once.
    """
    text = page.read_text("utf-8")
    for mark in marks:
        if (count := len(_place(mark).findall(text))) != 1:
            raise SystemExit(
                f"{page} has {count} places for the table {mark!r}, expected 1. Write the lines "
                f"<!-- {mark} --> and <!-- end --> where the table belongs."
            )


def merge_table(page: Path, mark: str, table: Table, order: Sequence[str] = ()) -> Table:
    """Writes a table into its place in a page; rows of the page that it lacks stay.

    So runs on different days or machines share a table. Rows are known by their first cell.

    Args:
        page: a page of Markdown.
        mark: of the place.
        table: the new rows. New columns come after those of the page.
        order: first cells, or how they begin; rows are sorted by the longest that fits.

    Returns:
        The table in the page.

    Raises:
        SystemExit: as check_places.
    """
    check_places(page, [mark])
    (text,) = _place(mark).finditer(page.read_text("utf-8"))
    lines = [_cells(line) for line in text[0].splitlines()[1:-1]]
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
    return merged


def replace_table(page: Path, mark: str, table: str) -> None:
    """Replaces the text between the comments `<!-- MARK -->` and `<!-- end -->` of a page.

    Raises:
        SystemExit: as check_places.
    """
    check_places(page, [mark])
    text = page.read_text("utf-8")
    write_whole(page, _place(mark).sub(lambda found: f"{found[1]}{table}\n{found[2]}", text))


def _place(mark: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.S)


def _cells(line: str) -> list[str]:
    """The cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
