"""Writes the rows that gpu_step.py and block_sparse.py saved into the tables of docs/benchmarks.md.

python benchmarks/gpu_tables.py FILE [FILE ...] [--page=docs/benchmarks.md]

Each FILE is of their --save. A row replaces the row of the page with the same first cell; others
stay.
"""

import argparse
import json
from pathlib import Path

from _pages import check_places, merge_table

from lingvo_moe.reporting.table import Table


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="of --save")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    saved = [json.loads(path.read_text()) for path in args.files]
    check_places(args.page, sorted({f"gpu {one['table']}" for one in saved}))
    for one in saved:
        columns = list(one["rows"][0])
        table = Table(columns, [[row[column] for column in columns] for row in one["rows"]])
        merge_table(args.page, f"gpu {one['table']}", table)


if __name__ == "__main__":
    main()
