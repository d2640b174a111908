import unicodedata

from lingvo_moe.data.differences import differences
from lingvo_moe.data.normalization import normalize

TRAIN = [f"it’s line {i}" for i in range(20)]


def _of(**targets):
    return differences("es-tar", {"train": TRAIN, **targets}, normalize)


def test_characters_that_train_does_not_have():
    assert _of(dev=TRAIN, test=TRAIN) == []
    straight = [text.replace("’", "'") for text in TRAIN]
    assert _of(dev=straight[:9]) == []  # too few lines to say something
    dev, test = _of(dev=straight, test=straight)
    assert dev.startswith("es-tar: a perfect translation that writes ' as train does")
    assert test.endswith("on test")  # nothing is said to be done


def test_text_in_another_form_and_of_another_length():
    (line,) = _of(dev=[unicodedata.normalize("NFD", "à é ì ò ù")] * 10)
    assert "identity" in line
    (line,) = _of(dev=["it’s a line that is long"] * 10)
    assert line == "es-tar: mean characters of a target: 12 in train, 24 in dev"
