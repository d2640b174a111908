import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from lingvo_moe.reporting.figure import legible, to_png
from lingvo_moe.testing.pictures import ink, pixels


def _drawn(*texts, palette=False):
    figure = Figure((3, 0.5 * len(texts)), dpi=100, layout="constrained")
    for i, text in enumerate(texts):
        figure.text(0.05, (i + 0.3) / len(texts), text)
    return to_png(figure, palette=palette)


def _ink(text):
    return ink(_drawn(text), "#000000", tolerance=127)


@pytest.mark.parametrize("palette", [False, True])
def test_a_picture_has_the_size_of_its_figure(palette):
    assert pixels(_drawn("a", palette=palette)).shape == (50, 300, 3)


def test_texts_are_not_mathematics():
    # As mathematics the first would be an error and the second would lose its dollars.
    assert _ink("$\\frac{-e$n") > _ink("frac{-en")
    assert _ink("$a$") > _ink("a") + 20


def test_long_names_are_shortened():
    assert legible("x" * 80) == "x" * 80
    assert legible("x" * 25, 24) == "x" * 23 + "…"


def test_what_cannot_be_seen_is_escaped():
    assert legible("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"


def test_a_character_without_font_is_written_as_its_code_point(monkeypatch, tmp_path):
    """Fonts that are damaged or gone have no characters."""
    (tmp_path / "bad.ttf").write_bytes(b"no font")
    fonts = [f for f in font_manager.fontManager.ttflist if f.name.startswith("DejaVu")]
    fonts += [font_manager.FontEntry(str(tmp_path / f"{n}.ttf"), n) for n in ("bad", "none")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    assert legible("\U00013000é-en") == "U+13000é-en"


def test_a_character_that_only_another_font_has_is_drawn_in_that():
    """Matplotlib brings STIX, which has letters that DejaVu Sans would draw as one box."""
    letters = ("\U0001d4d0", "\U0001d4d1")  # 𝓐, 𝓑
    assert [legible(letter) for letter in letters] == list(letters)
    assert not np.array_equal(*(pixels(_drawn(letter)) for letter in letters))
