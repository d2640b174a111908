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

from lingvo_moe.core.lines import printable

COLORS = ("#1f5fa8", "#c4562d", "#3b8544", "#7a4fa3", "#8a6d3b", "#2a9d8f", "#d1495b")
GREY = "#8a929b"
_BOXES = "Last Resort"  # Matplotlib's font with a placeholder box for every character


def to_png(figure: Figure, *, palette: bool = False) -> bytes:
    """Draws a figure, with literal texts and fonts that have their characters.

    Args:
        figure: drawn once. It needs a `layout`, which is then computed here, and a formatter for
            logarithmic axes, whose own labels are mathematics.
        palette: whether to reduce it to 256 colours. The file has about a quarter of the bytes, for
            pages with dozens of figures.

    Returns:
        The bytes of a PNG file.
    """
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(_families(text.get_text()))
    canvas, file = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    (picture.quantize(256) if palette else picture).save(file, "png")
    return file.getvalue()


def legible(text: str, longest: int = 80) -> str:
    """A name in the form in which a picture can show it.

    Args:
        text: any text. Control characters are escaped. A character that no installed font has is
            written as its code, such as U+65E5.
        longest: a longer result is cut to this number of characters and ends with "…".
    """
    shown = "".join(
        char if ord(char) < 128 or _font_of(char) else f"U+{ord(char):04X}"
        for char in printable(text)
    )
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _families(text: str) -> list[str]:
    """The default font, and fonts with the characters that it lacks."""
    others = {font for char in text if ord(char) >= 128 and (font := _font_of(char))}
    return [_default(), *sorted(others - {_default()})]


def _default() -> str:
    return font_manager.FontProperties(family=rcParams["font.family"]).get_name()


@functools.cache
def _font_of(char: str) -> str | None:
    """The family of a font that has the character, the default one if it does."""
    default = font_manager.findfont(_default())
    if _has(default, char):
        return _default()
    fonts = sorted(
        (
            font
            for font in font_manager.fontManager.ttflist
            if font.style == "normal" and not font.name.startswith(_BOXES)
        ),
        key=lambda font: ("Noto" not in font.name, font.weight != 400, font.name),
    )
    return next((font.name for font in fonts if _has(font.fname, char)), None)


@functools.lru_cache(maxsize=64)
def _characters(path: str) -> frozenset[int]:
    return frozenset(FT2Font(path).get_charmap())


def _has(path: str, char: str) -> bool:
    try:
        return ord(char) in _characters(path)
    except (OSError, RuntimeError):  # a font file that is gone or damaged
        return False
