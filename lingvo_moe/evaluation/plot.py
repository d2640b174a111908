"""The plot of the paper's Figure 6: ΔBLEU over language pairs, from most to least training data."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lingvo_moe.evaluation.report import Report
from lingvo_moe.reporting.figure import COLORS, GREY, legible, to_png

WINDOW = 10  # the paper's smoothing of the trend line
_BARS = "#d9dee4"
_LONGEST = 24  # characters of a name
_LABELS_UPRIGHT = 14  # with more pairs the labels are rotated and smaller


def draw_plot(report: Report) -> bytes:
    """Draws a report.

    Points are pairs, the line is their moving average, the bars are training sizes on a logarithmic
    scale. Without baselines the scores are BLEU instead of ΔBLEU. Returns a PNG.
    """
    pairs = [score.pair for score in report.pairs]
    has_baselines = any(score.delta_bleu is not None for score in report.pairs)
    figure = Figure(figsize=(min(6 + 0.16 * len(pairs), 20), 4.6), dpi=120, layout="tight")
    axes = figure.add_subplot()
    _draw_sizes(axes.twinx(), [score.train_examples or 0 for score in report.pairs])
    axes.set_zorder(2)
    axes.patch.set_visible(False)
    scores = [s.delta_bleu if has_baselines else s.bleu for s in report.pairs]
    _draw_scores(axes, scores, report.model)
    if has_baselines:
        axes.axhline(0.0, color="black", linewidth=0.8)
    else:
        axes.set_ylim(0.0, max(1.0, axes.get_ylim()[1]))  # BLEU, with room if each is 0
    _label(axes, pairs, report.baseline_model or "", has_baselines)
    return to_png(figure)


def moving_average(values: Sequence[float | None], window: int = WINDOW) -> np.ndarray:
    """The mean of the window around each position; at the ends the window is shorter.

    Args:
        values: None for a missing value.
        window: number of positions; an even window has one more before the position than after it.

    Returns float64, as long as values; NaN where the window holds no value.
    """
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    result = np.full(len(known), np.nan)
    for i in range(len(known)):
        around = known[max(0, i - window // 2) : i + (window + 1) // 2]
        around = around[~np.isnan(around)]
        if len(around):
            result[i] = around.mean()
    return result


def _draw_sizes(axes: Axes, sizes: Sequence[float]) -> None:
    axes.bar(range(len(sizes)), sizes, width=0.8, color=_BARS, zorder=0)
    axes.set_yscale("log" if any(sizes) else "linear")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(1, max([10, *sizes]) ** 1.6)  # the bars stay in the lower part of the picture
    axes.set_ylabel("training sentence pairs (bars)", color=GREY)
    axes.tick_params(axis="y", colors=GREY)
    for side in ("top", "left"):
        axes.spines[side].set_visible(False)


def _draw_scores(axes: Axes, values: Sequence[float | None], model: str) -> None:
    known = [i for i, value in enumerate(values) if value is not None]
    points = [values[i] for i in known]
    axes.plot(known, points, "o", color=COLORS[0], markersize=4, alpha=0.75)
    # With few pairs a window of ten would be too smooth.
    window = max(3, min(WINDOW, len(values) // 3))
    trend = moving_average(values, window)
    line = range(known[0], known[-1] + 1) if known else range(0)
    axes.plot(line, trend[line], color=COLORS[0], linewidth=2, label=legible(model, _LONGEST))


def _label(axes: Axes, pairs: Sequence[str], against: str, has_baselines: bool) -> None:
    axes.set_xlim(-0.8, len(pairs) - 0.2)
    axes.set_xticks(range(len(pairs)))
    upright = len(pairs) <= _LABELS_UPRIGHT
    size = 9 if upright else max(5.0, 9.0 - len(pairs) / 40)
    axes.set_xticklabels(
        [legible(pair, _LONGEST) for pair in pairs], rotation=30 if upright else 90, fontsize=size
    )
    axes.set_xlabel("language pairs, from most to least training data")
    against = legible(against) if 0 < len(against) <= _LONGEST else "the baselines"
    axes.set_ylabel(f"ΔBLEU against {against}" if has_baselines else "BLEU")
    axes.grid(axis="y", color="#eceff2", linewidth=0.8)
    axes.spines["top"].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))  # above all points
