"""Figures as PNG bytes. Names are not parsed as formulas; missing characters show their code."""

import functools
import io

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
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
        text: any text. Control characters are escaped. A character that the default font lacks
            is written as its code, such as U+65E5.
        longest: a longer result is cut to this number of characters and ends with "…".
    """
    shown = "".join(
        char if ord(char) in _characters() else f"U+{ord(char):04X}" for char in printable(text)
    )
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


@functools.cache
def _characters() -> frozenset[int]:
    """Those of the default font."""
    path = font_manager.findfont(font_manager.FontProperties(family=rcParams["font.family"]))
    return frozenset(FT2Font(path).get_charmap())
