"""A table for a terminal and for a page."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Collection, Sequence

from lingvo_moe.core.lines import printable
from lingvo_moe.reporting.page import escape


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text: the first column is a name, the others are numbers.

    Attributes:
        columns: their names; () for a table without a head.
        rows: of as many cells each.
        more_rows: a second part, such as averages, below a line in text.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    more_rows: Sequence[Sequence[str]] = ()

    def to_text(self) -> str:
        """Lines with aligned columns; control characters are escaped."""
        parts = [[list(map(printable, row)) for row in part] for part in self._parts()]
        widths = [max(map(_width, column)) for column in zip(*itertools.chain(*parts), strict=True)]
        lines = [[_align(row, widths) for row in part] for part in parts]
        rule = "-" * max(_width(line) for part in lines for line in part)
        return f"\n{rule}\n".join("\n".join(part) for part in lines)

    def to_html(self, caption: str = "", kind: str = "", signed: Collection[str] = ()) -> str:
        """The table as HTML.

        Args:
            caption: text above it.
            kind: a class of the page's style: "samples" for texts instead of numbers.
            signed: columns whose cells are coloured by their sign.
        """
        head = _row("th", self.columns) if self.columns else ""
        coloured = [name in signed for name in self.columns]
        body = "".join(_row("td", row, coloured) for row in (*self.rows, *self.more_rows))
        caption = f"<caption>{escape(caption)}</caption>" if caption else ""
        kind = f' class="{kind}"' if kind else ""
        return f"<table{kind}>{caption}{head}{body}</table>"

    def _parts(self):
        return [part for part in ([self.columns], self.rows, self.more_rows) if part]


def _width(text: str) -> int:
    """Width of a text in a terminal: 2 for a Chinese character, 0 for a combining mark."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    numbers = [space + cell for space, cell in zip(spaces[1:], row[1:], strict=True)]
    return "  ".join([row[0] + spaces[0], *numbers]).rstrip()


def _row(tag: str, cells: Sequence[str], coloured: Sequence[bool] = ()) -> str:
    kinds = (_sign(cell) if by_sign else "" for cell, by_sign in zip(cells, coloured, strict=False))
    parts = (
        f"<{tag}{kind}>{escape(cell)}</{tag}>"
        for cell, kind in itertools.zip_longest(cells, kinds, fillvalue="")
    )
    return f"<tr>{''.join(parts)}</tr>"


def _sign(cell: str) -> str:
    if not cell.strip("+-0.–"):
        return ""
    return ' class="worse"' if cell.startswith("-") else ' class="better"'
