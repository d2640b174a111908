"""Writes the tables of benchmarks into the pages of docs."""

import re
from collections.abc import Sequence
from pathlib import Path

from lingvo_moe.core.files import write_whole


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
