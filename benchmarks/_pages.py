"""Writes the tables of benchmarks into the pages of docs."""

import re
from pathlib import Path

from lingvo_moe.core.files import write_whole


def replace_table(page: Path, mark: str, table: str) -> None:
    """Replaces the text between the comments `<!-- MARK -->` and `<!-- end -->` of a page.

    Raises:
        SystemExit: the page does not have these comments exactly once.
    """
    begin = re.escape(f"<!-- {mark} -->\n")
    changed, count = re.subn(
        f"({begin}).*?(<!-- end -->)",
        lambda match: match[1] + table + "\n" + match[2],
        page.read_text("utf-8"),
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{page} has {count} places marked <!-- {mark} -->, expected 1.")
    write_whole(page, changed)
