"""The tables and curves of learning.py, made from the results of its runs."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments.learning_rows import ROWS
from experiments.tables import merge_csv
from lingvo_moe.config.params import from_fields, to_fields
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.reporting.figure import to_png
from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import write_whole

Run = dict[str, Any]
# Study -> dev losses. The table has the number of tokens until each is reached (GShard, table 2).
_LEVELS = {"scale": (2.0, 1.0, 0.5)}
_AFTER = {"peer": (1, 3, 10)}  # millions of tokens; the table has the dev loss after so many
_PICTURES = {"scale": "width_and_depth.png"}  # study -> the file of its curves in results


def write_tables(output: Path, results: Path | None) -> None:
    """Prints a table for each study, and draws its curves as OUTPUT/STUDY.png.

    With the directory `results` a table is also written to learning_STUDY.csv there; rows of that
    file whose runs are not in output stay. The pictures of _PICTURES are also written there.
    """
    runs = list(_runs(output))
    for study, found in itertools.groupby(runs, key=lambda run: run["row"].partition("/")[0]):
        of = list(found)
        rows = [list(seeds) for _, seeds in itertools.groupby(of, key=lambda run: run["row"])]
        table = study_table(study, rows)
        print(f"{study}\n{table.to_markdown()}\n")
        if all(seeds[0]["until_source_use"] for seeds in rows):
            _print_fits(of)
        picture = to_png(draw_curves(rows))
        write_whole(output / f"{study}.png", picture)
        if results and study in _PICTURES:
            write_whole(results / _PICTURES[study], picture)
        if results:
            labels = [row.label for row in ROWS if row.study == study]
            merge_csv(results / f"learning_{study}.csv", table, labels)


def _runs(output: Path) -> Iterator[Run]:
    """The results of all rows, without those that were made before the params of a row changed."""
    for row in ROWS:
        fields = to_fields(row.params)
        for seed in row.seeds:
            path = output / "runs" / f"{row.name}.{seed}.json"
            if path.exists() and (run := json.loads(path.read_text())).get("params") == fields:
                yield run
            elif path.exists():
                print(f"{path} is left out: its row has other params now. Run learning.py again.")


def study_table(study: str, rows: Sequence[Sequence[Run]]) -> Table:
    """A line for each row, means over its seeds, and below it one for each further search.

    Columns without values are left out.
    """
    lines = []
    for seeds in rows:
        lines.append(dict(_cells(study, seeds)))
        for search in seeds[0]["searches"]:
            if search != "beam":
                lines.append({"": f"{_label(seeds)}, {search}"} | dict(_bleu(seeds, search)))
    columns = [name for name in lines[0] if any(line.get(name) for line in lines)]
    return Table(columns, [[line.get(n, "") for n in columns] for line in lines])


def _cells(study: str, seeds: Sequence[Run]) -> Iterator[tuple[str, str]]:
    yield "", _label(seeds)
    yield "seeds", str(len(seeds))
    if study not in _AFTER:
        yield "dev loss", _mean([run["dev_loss"] for run in seeds], spread=True)
        yield "dev loss, last 5 weights averaged", _mean([run["dev_loss_of_mean"] for run in seeds])
    for level in _LEVELS.get(study, ()):
        tokens = [_until(_losses(run), level) for run in seeds]
        yield f"M tokens to {level}", "" if None in tokens else f"{np.mean(tokens) / 1e6:.2f}"
    for millions in _AFTER.get(study, ()):
        losses = [_after(run, 1e6 * millions) for run in seeds]
        yield f"dev loss after {millions}M", _mean(losses)
    if seeds[0]["until_source_use"]:
        use = seeds[0]["until_source_use"]
        yield f"steps to source use {use}", _mean([_when_it_reads(run, 0) for run in seeds], ".0f")
        tokens = [_when_it_reads(run, 1) / 1e6 for run in seeds]
        yield f"M tokens to source use {use}", _mean(tokens, ".2f")
    yield "source use", _mean([run.get("source_use") for run in seeds], ".2f")
    yield from _bleu(seeds, "beam")
    tests = [run["scores"].get("beam.test") for run in seeds]
    for tier, third in (("high", 0), ("low", -1)):
        found = [_tier(scores, third) for scores in tests if scores]
        yield f"{tier} third", _mean(found, ".1f") if found else ""


def _bleu(seeds: Sequence[Run], search: str) -> Iterator[tuple[str, str]]:
    """The mean BLEU of a search on each split."""
    for split in ("dev", "test"):
        scores = [run["scores"].get(f"{search}.{split}") for run in seeds]
        yield f"{split} BLEU", _mean([s and s["bleu"] for s in scores], ".1f")


def _label(seeds):
    return seeds[0]["row"].partition("/")[2]


def _mean(values, form=".3f", spread=False):
    """The mean of what is known, with the standard deviation of several seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    deviation = f" ± {np.std(known, ddof=1):.3f}" if spread and len(known) > 1 else ""
    return format(np.mean(known), form) + deviation


def _losses(run):
    """(target tokens, dev loss) of each evaluation."""
    return [point[1:3] for point in run["curve"]]


def _when_it_reads(run, column):
    """Steps (column 0) or target tokens (1) until the source use is the run's until_source_use.

    NaN if it never is.
    """
    unused = [(point[column], -point[3]) for point in run["curve"]]
    return _until(unused, -run["until_source_use"]) or np.nan


def _after(run, tokens):
    """The dev loss of the evaluation after about so many target tokens; None if there is none."""
    found = [loss for count, loss in _losses(run) if abs(count / tokens - 1) < 0.1]
    return found[0] if found else None


def _until(points, level):
    """Steps or tokens until a value is at most `level`; None if it never is.

    Between two points the value is taken as linear in the logarithm of steps or tokens.
    """
    if points[0][1] <= level:
        return points[0][0]
    for (before, high), (after, low) in itertools.pairwise(points):
        if low <= level < high:
            share = (high - level) / (high - low)
            return float(np.exp(np.log(before) + share * np.log(after / before)))
    return None


def _print_fits(runs: Sequence[Run]) -> None:
    models = {row.name: row.model for row in ROWS}
    for model in dict.fromkeys(models[run["row"]] for run in runs):
        some = [run for run in runs if models[run["row"]] == model]
        if len(some) > 2:  # two fit any power
            fit = "steps = {:.0f} · pairs^{:.2f}, × or ÷ {:.2f}".format(*fit_of_budgets(some))
            print(f"{model}: {fit}\n")


def fit_of_budgets(runs: Sequence[Run]) -> tuple[float, float, float]:
    """How the steps until a model uses its sources grow with the number of pairs.

    Returns:
        a, b and s of steps = a · pairs^b; s is the factor by which the runs differ from it, the
        exponential of the standard deviation of the logarithms.
    """
    inputs = [from_fields(InputParams, run["input"], "the run") for run in runs]
    pairs = [len(p.pairs) or run["num_pairs"] for p, run in zip(inputs, runs, strict=True)]
    logs = np.log(pairs), np.log([_when_it_reads(run, 0) for run in runs])
    slope, start = np.polyfit(*logs, 1)
    errors = logs[1] - start - slope * logs[0]
    spread = np.exp(np.sqrt(errors @ errors / (len(runs) - 2)))
    return float(np.exp(start)), float(slope), float(spread)


def _tier(scores, third):
    """Mean BLEU of a third of the reliable pairs, which are ordered by their training data."""
    ranked = sorted(scores["pairs"].values(), key=lambda pair: -pair["train_examples"])
    bleu = [pair["bleu"] for pair in ranked if pair["reliable"]]
    return float(np.mean(np.array_split(bleu, 3)[third])) if len(bleu) >= 3 else None


def draw_curves(rows: Sequence[Sequence[Run]]) -> Figure:
    """Dev loss over target tokens; a line for each row, the mean of its seeds."""
    figure = Figure((8, 4.5), layout="constrained")
    axes = figure.subplots()
    for seeds in rows:
        length = min(len(run["curve"]) for run in seeds)
        points = np.mean([run["curve"][:length] for run in seeds], axis=0)
        axes.plot(points[:, 1] / 1e6, points[:, 2], label=_label(seeds), linewidth=1.2)
    axes.loglog()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel="target tokens, millions", ylabel="dev loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
