"""Trains a model on real text, compares it with bilingual baselines, and writes tables for docs.

python benchmarks/real_text.py OUTPUT --corpora=DIR [--corpus=tldr] [--page=docs/results.md]

DIR has a directory for each corpus; learning_data.py lists them. The data, the model, the baselines
and the report are made in OUTPUT/CORPUS. After an interruption the same command goes on. The page
has three marked places: `<!-- real_text CORPUS averages -->` and `<!-- real_text CORPUS pairs -->`
for the scores, and `<!-- real_text CORPUS curve -->` for the evaluations during training. Each ends
with `<!-- end -->`. The plot of ΔBLEU is copied into the directory of the page, as
CORPUS_delta_bleu.png. Pairs with fewer than 30 test lines are combined in one row.
"""

import argparse
import dataclasses
import shutil
from pathlib import Path

import tensorflow as tf
from _pages import check_places, replace_table
from learning_data import prepared

from lingvo_moe import api
from lingvo_moe.evaluation.report import Report, averages_table, pairs_table
from lingvo_moe.evaluation.scores import RELIABLE_TEST_EXAMPLES
from lingvo_moe.reporting.table import Table

_CURVE = {  # tag of TensorBoard -> name and format
    "dev/loss": ("dev loss", ".2f"),
    "dev/source_use": ("source use", ".2f"),
    "dev/bleu": ("dev BLEU", ".1f"),
}


def main() -> None:
    """Makes what is missing, then writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--corpora", type=Path, required=True, help="a directory for each corpus")
    parser.add_argument("--corpus", default="tldr", help="a name of CORPORA in learning_data.py")
    parser.add_argument("--model", default="finegrained.Small", help="a registered model")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        help="a registered bilingual model; of several, each pair has the best on dev",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="as for lingvo-moe-train, for the model and the baselines",
    )
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    args = parser.parse_args()
    here = args.output / args.corpus
    marks = [f"real_text {args.corpus} {table}" for table in ("averages", "pairs", "curve")]
    if args.page:
        check_places(args.page, marks)  # the error must come before hours of training
    report = _report(here, args)
    reliable = dataclasses.replace(report, pairs=[pair for pair in report.pairs if pair.reliable])
    tables = averages_table(reliable), pairs_table(reliable), _curve(here / "model")
    for mark, table in zip(marks, (table.to_markdown() for table in tables), strict=True):
        print(f"{table}\n")
        if args.page:
            replace_table(args.page, mark, table)
    picture = here / "report" / "delta_bleu.png"
    if args.page and picture.exists():
        shutil.copyfile(picture, args.page.with_name(f"{args.corpus}_delta_bleu.png"))


def _report(here: Path, args: argparse.Namespace) -> Report:
    """Trains the model and the baselines, and compares them on test."""
    data = prepared(here / "data", args.corpora, args.corpus)
    api.train(args.model, data, here / "model", set=[*args.set, "train.dev_bleu_sentences=300"])
    baselines = here / "baselines" if args.baseline else None
    if baselines:
        pairs = [p.name for p in data.pairs if p.examples.get("test", 0) >= RELIABLE_TEST_EXAMPLES]
        changes = [*args.set, "train.source_use_sentences=0"]
        api.train_baselines(args.baseline, data, baselines, pairs=pairs, set=changes)
    return api.evaluate(
        here / "model",
        data,
        baselines=baselines,
        output=here / "report",
        floor=True,
        overwrite=True,
    )


def _curve(logdir: Path) -> Table:
    """The evaluations of a training run, from what it wrote for TensorBoard."""
    points: dict[str, dict[int, float]] = {tag: {} for tag in _CURVE}
    for path in sorted((logdir / "events").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag in points:
                    points[value.tag][event.step] = value.simple_value
    steps = sorted(points["dev/loss"])
    lines = [
        [name, *(format(points[tag][step], form) for step in steps)]
        for tag, (name, form) in _CURVE.items()
    ]
    return Table(["step", *map(str, steps)], lines)


if __name__ == "__main__":
    main()
