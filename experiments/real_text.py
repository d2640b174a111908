"""Trains a model on real text, compares it with bilingual baselines, and writes tables.

python -m experiments.real_text OUTPUT --corpora=DIR [--corpus=tldr] [--results=experiments/results]

DIR has a directory for each corpus; learning_data.py lists them. The data, the model, the baselines
and the report are made in OUTPUT/CORPUS. After an interruption the same command goes on. The
tables are CORPUS_NAME.csv in the directory of `--results`: averages, pairs (scores), curve (the
evaluations during training), seeds (means of each seed) and sizes (dev BLEU of the baselines of
pairs with several). The plots are CORPUS_curve.png, and CORPUS_delta_bleu.png if there are
baselines. Pairs with fewer than 30 test lines are combined in one row.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.learning_data import prepared
from experiments.tables import merge_csv, write_csv
from lingvo_moe import api
from lingvo_moe.config.params import override
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.plot import draw_plot
from lingvo_moe.evaluation.report import Report, averages_table, pairs_table, shown_averages
from lingvo_moe.evaluation.scores import RELIABLE_TEST_EXAMPLES
from lingvo_moe.reporting.figure import COLORS, to_png
from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import write_whole
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.summaries import read_scalars

_CURVE = {  # tag of TensorBoard -> name and format
    "dev/loss": ("dev loss", ".2f"),
    "dev/source_use": ("source use", ".2f"),
    "dev/bleu": ("dev BLEU", ".1f"),
}
_BASELINES = "baselines"


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
    parser.add_argument("--seed", type=int, default=1, help="train.seed of the model")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="as for lingvo-moe-train, for the model and the baselines",
    )
    parser.add_argument(
        "--baseline_set",
        action="append",
        default=[],
        help="as --set, for the baselines alone; MODEL:param=value for one of them",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="as for lingvo-moe-evaluate, such as SpBleu(model='FILE')",
    )
    parser.add_argument("--results", type=Path, help="directory for the tables as CSV files")
    args = parser.parse_args()
    here = args.output / args.corpus
    report = _report(here, args, _baseline_models(args))
    reliable = dataclasses.replace(report, pairs=[pair for pair in report.pairs if pair.reliable])
    curve = curve_table(_logdir(here, args))
    names = [pair.pair for pair in reliable.pairs]
    merged = {  # name -> table and the order of its rows; rows of other seeds and pairs stay
        "seeds": (_of_seed(reliable, args.seed), [str(i) for i in range(100)]),
        "sizes": (sizes_table(here / _BASELINES, args.baseline, names), names),
    }
    replaced = {
        "averages": averages_table(reliable),
        "pairs": pairs_table(reliable),
        "curve": curve,
    }
    for name, table in (replaced | {name: table for name, (table, _) in merged.items()}).items():
        print(f"{table.to_markdown()}\n")
        if args.results and name in replaced:
            write_csv(args.results / f"{args.corpus}_{name}.csv", table)
        elif args.results and table.rows:
            merge_csv(args.results / f"{args.corpus}_{name}.csv", table, merged[name][1])
    if args.results:
        write_whole(args.results / f"{args.corpus}_curve.png", to_png(draw_curve(curve)))
    if args.results and reliable.baseline_model:
        write_whole(args.results / f"{args.corpus}_delta_bleu.png", draw_plot(reliable))


def _baseline_models(args: argparse.Namespace) -> dict[str, TranslationParams]:
    """The params of each bilingual model."""
    changes = [*args.set, "train.source_use_sentences=0"]
    return {
        name: override(api.params(name), [*changes, *_of_model(args.baseline_set, name)])
        for name in args.baseline
    }


def _of_model(changes: Sequence[str], model: str) -> list[str]:
    """The changes for one model: all "param=value", and those of its own name, "MODEL:…"."""
    names = {text: text.partition("=")[0].rpartition(":")[0] for text in changes}
    return [t.removeprefix(f"{name}:") for t, name in names.items() if name in ("", model)]


def _report(here: Path, args: argparse.Namespace, models: dict[str, TranslationParams]) -> Report:
    """Trains the model and the baselines, and compares them on test."""
    data = prepared(here / "data", args.corpora, args.corpus)
    logdir = _logdir(here, args)
    changes = [*args.set, "train.dev_bleu_sentences=300", f"train.seed={args.seed}"]
    api.train(args.model, data, logdir, set=changes)
    return api.evaluate(
        logdir,
        data,
        baselines=_baselines(here, data, models),
        output=_report_of(here, args),
        floor=True,
        metrics=args.metric,
        overwrite=True,
    )


def _logdir(here: Path, args: argparse.Namespace) -> Path:
    return here / f"model.{args.seed}"


def _report_of(here: Path, args: argparse.Namespace) -> Path:
    return here / f"report.{args.seed}"


def _baselines(here: Path, data: Dataset, models: dict[str, TranslationParams]) -> list[Path]:
    """Trains the baselines; their directory, if there are any."""
    if not models:
        return []
    pairs = [
        pair.name
        for pair in data.pairs
        if pair.examples.get("train") and pair.examples.get("test", 0) >= RELIABLE_TEST_EXAMPLES
    ]
    output = here / _BASELINES
    api.train_baselines(models, data, output, pairs=pairs, own_vocabulary=True)
    return [output]


def _of_seed(report: Report, seed: int) -> Table:
    """The mean scores of the pairs, as the row of this seed."""
    groups = shown_averages(report)
    cells = {
        "seed": str(seed),
        "pairs": str(groups["all"].of),
        **{f"BLEU, {name}": f"{average.bleu:.1f}" for name, average in groups.items()},
        "chrF++": f"{groups['all'].chrf:.1f}",
    }
    return Table(list(cells), [list(cells.values())])


def sizes_table(baselines: Path, models: Sequence[str], pairs: Sequence[str]) -> Table:
    """The highest dev BLEU of the baselines of each pair that has several.

    Args:
        baselines: their directory, with a logdir MODEL/PAIR for each.
        models: their names.
        pairs: names of pairs.
    """
    rows = []
    for pair in pairs:
        logdirs = [baselines / model / pair for model in models]
        if len(models) > 1 and all(logdir.exists() for logdir in logdirs):
            best = [max(read_scalars(logdir / "events")["dev/bleu"].values()) for logdir in logdirs]
            rows.append([pair, *(f"{bleu:.1f}" for bleu in best)])
    return Table(["pair", *(f"dev BLEU, {model}" for model in models)], rows)


def curve_table(logdir: Path) -> Table:
    """The evaluations of a training run, from what it wrote for TensorBoard.

    Returns:
        A row for each of _CURVE that was measured, and a column for each evaluation.
    """
    points = read_scalars(logdir / "events")
    steps = sorted(points["dev/loss"])
    lines = [
        [name, *(format(points[tag][step], form) if step in points[tag] else "" for step in steps)]
        for tag, (name, form) in _CURVE.items()
        if points[tag]
    ]
    return Table(["step", *map(str, steps)], lines)


def draw_curve(table: Table) -> Figure:
    """A plot for each row of a curve_table, over the steps."""
    steps = [int(step) for step in table.columns[1:]]
    figure = Figure((3.2 * len(table.rows), 2.8), layout="constrained")
    for axes, (name, *cells), color in zip(
        figure.subplots(1, len(table.rows), squeeze=False)[0], table.rows, COLORS, strict=False
    ):
        points = [(step, float(cell)) for step, cell in zip(steps, cells, strict=True) if cell]
        axes.plot(*zip(*points, strict=True), "o-", color=color, markersize=4)
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
