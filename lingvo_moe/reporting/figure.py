"""Figures as PNG bytes; names are not parsed as formulas."""

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from lingvo_moe.system.lines import printable

COLORS = ("#1f5fa8", "#c4562d", "#3b8544", "#7a4fa3", "#8a6d3b", "#2a9d8f", "#d1495b")
GREY = "#8a929b"


def to_png(figure: Figure) -> bytes:
    """Draws a figure, with literal texts.

    Args:
        figure: drawn once. It needs a `layout`, which is then computed here, and a formatter for
            logarithmic axes, whose own labels are mathematics.

    Returns:
        The bytes of a PNG file.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    canvas, file = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(file, "png")
    return file.getvalue()


def legible(text: str, longest: int = 80) -> str:
    """A name in the form in which a picture can show it.

    Args:
        text: any text. Control characters are escaped.
        longest: a longer result is cut to this number of characters and ends with "…".
    """
    shown = printable(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
