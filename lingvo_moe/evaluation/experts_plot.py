"""Pictures of routing, as PNG bytes.  L languages, E experts."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from lingvo_moe.reporting.figure import legible, to_png

_DPI = 110
_WIDEST, _TALLEST = 8.4, 12.0  # inches of cells; labels and colour bar fill the rest of the page
_MARGIN = 1.2  # inches for labels, title and colour bar, either way
_LONGEST = 24  # characters of a label


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
    # The scale ends near the 99.5th percentile of the cells above 0, so that a single large cell
    # does not reduce the contrast of all others.
    seen = shares[np.nan_to_num(shares) > 0]
    top = float(np.percentile(seen, 99.5, method="higher")) if seen.size else 1.0
    figure, axes = _draw(shares, (width, height), (0.0, top), title, "share of choices")
    axes.set_aspect("auto")
    _label(axes.yaxis, languages, height)
    _label(axes.xaxis, [str(expert) for expert in experts], width)
    axes.set_xlabel("expert")
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
    # The diagonal is always 1. Without it the other cells use the whole scale.
    others = np.where(np.eye(len(similarity), dtype=bool), np.nan, similarity)
    known = others[~np.isnan(others)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    scale = low, max(high, low + 1e-6)
    figure, axes = _draw(others, (inches, inches), scale, title, "similarity")
    for edge in np.cumsum(groups)[:-1] - 0.5:
        for line in (axes.axhline, axes.axvline):
            line(edge, color="#c4562d", linewidth=1.2)
    _label(axes.yaxis, languages, inches)
    _label(axes.xaxis, languages, inches, rotation=90)
    return to_png(figure, palette=True)


def _draw(values, size, scale, title, meaning):
    """A figure with cells, a title and a bar of colours; its axes have no labels yet."""
    width, height = size
    figure = Figure((width + _MARGIN, height + _MARGIN), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(legible(title), fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # Cells of a pixel or more are drawn sharp; smaller cells are averaged.
    sharp = values.shape[1] <= width * _DPI
    picture = axes.imshow(
        values,
        cmap=colormaps["YlGnBu"].with_extremes(bad="#d9dee4"),
        vmin=scale[0],
        vmax=scale[1],
        interpolation="nearest" if sharp else "antialiased",
    )
    bar = figure.colorbar(picture, cax=axes.inset_axes([1 + 0.12 / width, 0, 0.14 / width, 1]))
    bar.set_label(meaning, fontsize=9)
    bar.ax.tick_params(labelsize=9)
    return figure, axes


def _label(axis, names: Sequence[str], inches: float, rotation: int = 0) -> None:
    """As many labels as fit: all, or every second, third, …"""
    points = 72 * inches / len(names)
    size = float(np.clip(0.75 * points, 5.0, 9.0))
    across = axis.axis_name == "x" and not rotation
    needed = size * (0.7 * max(map(len, names)) + 0.6) if across else size * 1.15
    places = range(0, len(names), max(1, math.ceil(needed / points - 1e-9)))
    labels = [legible(names[i], _LONGEST) for i in places]
    axis.set_ticks(places, labels, fontsize=size, rotation=rotation)
