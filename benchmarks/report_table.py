"""Writes the tables of a report of lingvo-moe-evaluate into a page of docs.

python benchmarks/report_table.py REPORT PAGE MARK

The page has the comments `<!-- MARK -->` and `<!-- end -->`. Pairs with too few test lines are left
out of the averages and of the table, which has a row for all of them together.
"""

import argparse
import dataclasses
from pathlib import Path

from _pages import replace_table

from lingvo_moe.evaluation.report import averages_table, load_report, pairs_table


def main() -> None:
    """Replaces the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("mark")
    args = parser.parse_args()
    report = load_report(args.report)
    kept = dataclasses.replace(report, pairs=[pair for pair in report.pairs if pair.reliable])
    tables = (averages_table(kept), pairs_table(kept))
    text = "\n\n".join(table.to_markdown() for table in tables)
    replace_table(args.page, args.mark, text)


if __name__ == "__main__":
    main()
