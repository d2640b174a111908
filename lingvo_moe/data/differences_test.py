import unicodedata

from lingvo_moe.data.differences import differences
from lingvo_moe.data.normalization import normalize

TRAIN = [f"it’s line {i}" for i in range(20)]


def _of(**targets):
    return differences("es-tar", {"train": TRAIN, **targets}, normalize)


def test_alike_splits_say_nothing():
    assert _of(dev=TRAIN, test=TRAIN) == []
    assert _of(dev=["it's ten times as long" * 9] * 9) == []  # too few lines to say something


def test_characters_that_train_does_not_have():
    straight = [text.replace("’", "'") for text in TRAIN]
    (line,) = _of(dev=straight)
    assert line.startswith("es-tar: a perfect translation that writes ' as train does")
    (line,) = _of(test=straight)
    assert line.endswith("on test")  # test is reported, and nothing is said to be done


def test_text_that_the_vocabulary_writes_in_another_form():
    (line,) = _of(dev=[unicodedata.normalize("NFD", "à é ì ò ù")] * 10)
    assert "identity" in line


def test_lengths():
    (line,) = _of(dev=["it’s a line that is long"] * 10)
    assert line == "es-tar: characters of a target: 12 in train, 24 in dev"
