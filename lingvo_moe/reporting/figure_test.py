from matplotlib.figure import Figure

from lingvo_moe.reporting.figure import legible, to_png
from lingvo_moe.testing.pictures import ink, pixels


def _drawn(*texts):
    figure = Figure((3, 0.5 * len(texts)), dpi=100, layout="constrained")
    for i, text in enumerate(texts):
        figure.text(0.05, (i + 0.3) / len(texts), text)
    return to_png(figure)


def _ink(text):
    return ink(_drawn(text), "#000000", tolerance=127)


def test_a_picture_has_the_size_of_its_figure():
    assert pixels(_drawn("a")).shape == (50, 300, 3)


def test_texts_are_not_mathematics():
    # As mathematics the first would be an error and the second would lose its dollars.
    assert _ink("$\\frac{-e$n") > _ink("frac{-en")
    assert _ink("$a$") > _ink("a") + 20


def test_long_names_are_shortened():
    assert legible("x" * 80) == "x" * 80
    assert legible("x" * 25, 24) == "x" * 23 + "…"


def test_what_cannot_be_seen_is_escaped():
    assert legible("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
