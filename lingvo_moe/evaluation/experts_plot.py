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
    figure = Figure((width + _MARGIN, height + _MARGIN), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(legible(title), fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # Cells of a pixel or more are drawn sharp; smaller cells are averaged.
    sharp = shares.shape[1] <= width * _DPI
    picture = axes.imshow(
        shares,
        cmap=colormaps["YlGnBu"].with_extremes(bad="#d9dee4"),
        vmin=0.0,
        vmax=top,
        interpolation="nearest" if sharp else "antialiased",
        aspect="auto",
    )
    bar = figure.colorbar(picture, cax=axes.inset_axes([1 + 0.12 / width, 0, 0.14 / width, 1]))
    bar.set_label("share of choices", fontsize=9)
    _label(axes.yaxis, languages, height)
    _label(axes.xaxis, [str(expert) for expert in experts], width)
    axes.set_xlabel("expert")
    return to_png(figure, palette=True)


def _label(axis, names: Sequence[str], inches: float) -> None:
    """As many labels as fit: all, or every second, third, …"""
    points = 72 * inches / len(names)
    size = float(np.clip(0.75 * points, 5.0, 9.0))
    across = axis.axis_name == "x"
    needed = size * (0.7 * max(map(len, names)) + 0.6) if across else size * 1.15
    places = range(0, len(names), max(1, math.ceil(needed / points - 1e-9)))
    labels = [legible(names[i], _LONGEST) for i in places]
    axis.set_ticks(places, labels, fontsize=size)
