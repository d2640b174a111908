"""A table for a terminal, for Markdown, for a page and as JSON."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Collection, Sequence

from lingvo_moe.reporting.page import escape
from lingvo_moe.system.lines import printable


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text. Columns of text are aligned left, columns of numbers right.

    Attributes:
        columns: their names; () for a table without a head.
        rows: of as many cells each.
        more_rows: a second part, such as averages, below a line in text.
        texts: number of text columns, which come first; the others hold numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    more_rows: Sequence[Sequence[str]] = ()
    texts: int = 1

    def to_text(self) -> str:
        """Lines with aligned columns; control characters are escaped."""
        parts = [[list(map(printable, row)) for row in part] for part in self._parts()]
        widths = [max(map(_width, column)) for column in zip(*itertools.chain(*parts), strict=True)]
        lines = [[self._align(row, widths) for row in part] for part in parts]
        rule = "-" * max(_width(line) for part in lines for line in part)
        return f"\n{rule}\n".join("\n".join(part) for part in lines)

    def to_markdown(self) -> str:
        """A table of Markdown; cells may hold Markdown."""
        rows = (self.columns, ["---"] * len(self.columns), *self.rows, *self.more_rows)
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def to_json(self) -> list[dict[str, str]]:
        """The rows: column -> the text of the cell."""
        rows = (*self.rows, *self.more_rows)
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def to_html(self, caption: str = "", signed: Collection[str] = ()) -> str:
        """The table as HTML.

        Args:
            caption: text above it.
            signed: columns whose cells are coloured by their sign.
        """
        head = _row("th", self.columns) if self.columns else ""
        coloured = [name in signed for name in self.columns]
        texts = self.texts if self.texts > 1 else 0
        body = "".join(_row("td", row, coloured, texts) for row in (*self.rows, *self.more_rows))
        caption = f"<caption>{escape(caption)}</caption>" if caption else ""
        kind = ' class="texts"' if self.texts > 1 else ""
        return f"<table{kind}>{caption}{head}{body}</table>"

    def _parts(self):
        head = [self.columns] if self.columns else []
        return [part for part in (head, self.rows, self.more_rows) if part]

    def _align(self, row: Sequence[str], widths: Sequence[int]) -> str:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (
            cell + space if i < self.texts else space + cell
            for i, (cell, space) in enumerate(zip(row, spaces, strict=True))
        )
        return "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """Width of a text in a terminal: 2 for a Chinese character, 0 for a combining mark."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _row(tag: str, cells: Sequence[str], coloured: Sequence[bool] = (), texts: int = 0) -> str:
    signs = (_sign(cell) if by_sign else "" for cell, by_sign in zip(cells, coloured, strict=False))
    kinds = itertools.chain([' dir="auto"'] * texts, itertools.islice(signs, texts, None))
    parts = (
        f"<{tag}{kind}>{escape(cell)}</{tag}>"
        for cell, kind in itertools.zip_longest(cells, kinds, fillvalue="")
    )
    return f"<tr>{''.join(parts)}</tr>"


def _sign(cell: str) -> str:
    if not cell.strip("+-0.–"):
        return ""
    return ' class="worse"' if cell.startswith("-") else ' class="better"'
