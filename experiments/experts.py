"""Draws the runs of lingvo-moe-compare: loss over time, and chrF++ over languages.

python -m experiments.experts experiments/results/experts_200.json

The file is a compare.json under another name. Writes a table and a picture beside it, with the same
name and the endings .csv and .png.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.tables import write_csv
from lingvo_moe.evaluation.plot import moving_average
from lingvo_moe.jobs.compare import compare_table
from lingvo_moe.reporting.figure import COLORS, to_png
from lingvo_moe.system.files import write_whole


def main(path: Path) -> None:
    """Writes the table and the picture of a file."""
    runs = json.loads(path.read_text())["runs"]
    table = compare_table(runs)
    print(table.to_text())
    write_csv(path.with_suffix(".csv"), table)
    write_whole(path.with_suffix(".png"), to_png(draw(runs)))


def draw(runs: list[dict]) -> Figure:
    """Three pictures; a line for each row, the mean of its seeds.

    Dev loss over target tokens and over hours of training steps; chrF++ of the pairs from most to
    least training lines, smoothed over ten pairs (GShard, figure 6).
    """
    figure = Figure((15, 4.5), layout="constrained", dpi=110)
    by_tokens, by_hours, by_language = figure.subplots(1, 3)
    rows = itertools.groupby(sorted(runs, key=lambda run: run["row"]), lambda run: run["row"])
    for (name, of_row), color in zip(rows, itertools.cycle(COLORS), strict=False):
        seeds = list(of_row)
        steps, losses = np.mean([run["curve"] for run in seeds], axis=0).T
        tokens = np.mean([run["target_tokens"] for run in seeds]) / steps[-1]
        seconds = np.mean([run["step_seconds"] for run in seeds])
        by_tokens.plot(steps * tokens / 1e6, losses, "o-", color=color, label=name, markersize=3)
        by_hours.plot(steps * seconds / 3600, losses, "o-", color=color, label=name, markersize=3)
        scores = [_by_lines(run["pairs"]) for run in seeds if "pairs" in run]
        if scores:
            by_language.plot(moving_average(np.mean(scores, axis=0)), color=color, label=name)
    by_tokens.set(xlabel="target tokens, millions", ylabel="dev loss, nats per token")
    by_hours.set(xlabel="hours of steps", ylabel="dev loss, nats per token")
    by_language.set(xlabel="languages, from most to least training lines", ylabel="chrF++")
    for axes in (by_tokens, by_hours, by_language):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _by_lines(pairs):
    """The chrF++ of the pairs, from most to least training lines."""
    order = sorted(pairs, key=lambda pair: (-pairs[pair][0], pair))
    return [pairs[pair][2] for pair in order]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
