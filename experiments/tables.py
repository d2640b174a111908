"""The tables of experiments as CSV files."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import write_whole


def read_csv(path: Path) -> Table:
    """The table in a file."""
    columns, *rows = csv.reader(io.StringIO(path.read_text("utf-8")))
    return Table(columns, rows)


def write_csv(path: Path, table: Table) -> None:
    """Writes a table, also its second part, in place of what the file had."""
    text = io.StringIO()
    lines = (table.columns, *table.rows, *table.more_rows)
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_whole(path, text.getvalue())


def merge_csv(path: Path, table: Table, order: Sequence[str] = ()) -> None:
    """Writes a table; rows of the file that the table lacks stay.

    So runs on different days or machines share a table. Rows are known by their first cell.

    Args:
        path: the file; it need not exist.
        table: the new rows. New columns come after those of the file.
        order: first cells, or how they begin; rows are sorted by the longest that fits.
    """
    old = read_csv(path) if path.exists() else Table((), ())
    columns = list(dict.fromkeys((*old.columns, *table.columns)))
    rows = {}
    for row in (*old.to_json(), *table.to_json()):
        cells = [row.get(column, "") for column in columns]
        rows[cells[0]] = cells

    def place_of(row):
        begins = [begin for begin in order if row[0].startswith(begin)]
        return order.index(max(begins, key=len)) if begins else len(order)

    write_csv(path, Table(columns, sorted(rows.values(), key=place_of)))
