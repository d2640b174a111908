"""Tables of benchmarks in the pages of docs."""

import re
from pathlib import Path

from lingvo_moe.core.files import write_whole


def replace_table(page: Path, mark: str, table: str) -> None:
    """Replaces what stands between the comments `<!-- MARK -->` and `<!-- end -->` of a page.

    Raises:
        SystemExit: the page has no such place, or several.
    """
    begin = re.escape(f"<!-- {mark} -->\n")
    changed, count = re.subn(
        f"({begin}).*?(\n<!-- end -->)",
        lambda match: match[1] + table + match[2],
        page.read_text("utf-8"),
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{page} has {count} places marked <!-- {mark} -->, expected 1.")
    write_whole(page, changed)
