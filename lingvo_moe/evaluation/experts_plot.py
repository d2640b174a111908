"""Pictures of routing, as PNG bytes.  L languages, E experts."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lingvo_moe.reporting.figure import legible, to_png

_DPI = 110
_WIDEST = 8.4  # inches of cells; labels and colour bar fill the rest of the page
_TALLEST = 12.0
_MARGIN = 1.2  # inches for labels, title and colour bar, either way
_LEAST_FONT = 5.0
_LONGEST = 24  # characters of a label
_UNKNOWN = "#d9dee4"
_POINTS = 72.0  # an inch


def draw_load(
    shares: np.ndarray, languages: Sequence[str], experts: Sequence[int], title: str
) -> bytes:
    """A heat map, languages down, experts across: each language's choices as shares.

    Args:
        shares: [L, E] in the order to be drawn; rows of NaN are grey.
        languages: L labels.
        experts: E numbers.
        title: above it.
    """
    height = min(0.27 * max(len(languages), 4), _TALLEST)
    width = min(0.42 * max(len(experts), 8), _WIDEST)
    figure, axes = _canvas(width, height, title)
    # The scale ends near the 99.5th percentile of the cells above 0, so that a single large cell
    # does not reduce the contrast of all others.
    seen = shares[np.nan_to_num(shares) > 0]
    top = float(np.percentile(seen, 99.5, method="higher")) if seen.size else 1.0
    picture = _fill(axes, shares, width, 0.0, top)
    axes.set_aspect("auto")
    _label(axes.yaxis, languages, height / len(languages), upright=True)
    _label(axes.xaxis, [str(e) for e in experts], width / len(experts), upright=True)
    axes.set_xlabel("expert")
    beyond = "max" if seen.size and seen.max() > top else "neither"
    bar = _color_bar(figure, axes, picture, width, beyond, "share of choices")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    return to_png(figure, palette=True)


def draw_similarity(
    similarity: np.ndarray, languages: Sequence[str], groups: Sequence[int], title: str
) -> bytes:
    """Languages against languages.

    Args:
        similarity: [L, L] in the order to be drawn; NaN is grey.
        languages: L labels.
        groups: sizes of consecutive groups; lines separate them.
        title: above it.
    """
    inches = min(0.3 * max(len(languages), 8), _WIDEST)
    figure, axes = _canvas(inches, inches, title)
    # The diagonal is always 1. Without it the other cells use the whole scale.
    others = np.where(np.eye(len(similarity), dtype=bool), np.nan, similarity)
    known = others[~np.isnan(others)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    picture = _fill(axes, others, inches, low, max(high, low + 1e-6))
    for edge in np.cumsum(groups)[:-1] - 0.5:
        for line in (axes.axhline, axes.axvline):
            line(edge, color="#c4562d", linewidth=1.2)
    _label(axes.yaxis, languages, inches / len(languages), upright=True)
    _label(axes.xaxis, languages, inches / len(languages), upright=False)
    _color_bar(figure, axes, picture, inches, "neither", "similarity")
    return to_png(figure, palette=True)


def _canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure((width + _MARGIN, height + _MARGIN), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(legible(title), fontsize=10, loc="left")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure, axes


def _fill(axes, values, width, low, high):
    # Cells of a pixel or more are drawn sharp; smaller cells are averaged.
    sharp = values.shape[1] <= width * _DPI
    return axes.imshow(
        values,
        cmap=colormaps["YlGnBu"].with_extremes(bad=_UNKNOWN),
        vmin=low,
        vmax=high,
        interpolation="nearest" if sharp else "antialiased",
    )


def _color_bar(figure, axes, picture, width, beyond, label):
    inset = axes.inset_axes([1 + 0.12 / width, 0, 0.14 / width, 1])
    bar = figure.colorbar(picture, cax=inset, extend=beyond, extendfrac=0.03)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=9)
    return bar


def _label(axis, names: Sequence[str], inches_each: float, *, upright: bool) -> None:
    """As many labels as fit: all, or every second, third, …; `upright` sets them horizontally."""
    points = inches_each * _POINTS
    across = axis.axis_name == "x" and upright
    size = float(np.clip(0.75 * points, _LEAST_FONT, 9.0))
    needed = size * (0.7 * max(map(len, names)) + 0.6) if across else size * 1.15
    step = max(1, math.ceil(needed / points - 1e-9))
    places = range(0, len(names), step)
    labels = [legible(names[i], _LONGEST) for i in places]
    axis.set_ticks(places, labels, fontsize=size, rotation=0 if upright else 90)
