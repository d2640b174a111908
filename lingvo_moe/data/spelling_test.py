import pytest

from lingvo_moe.data.corpora import SentencePair
from lingvo_moe.data.spelling import differences, spelling


def lines(*targets):
    return [SentencePair("x", target) for target in targets] * 10


@pytest.mark.parametrize(
    ("texts", "before", "after"),
    [
        (["ra'i"], "ra’i raʼi", "ra'i ra'i"),
        (["ra'i ra’i"], "ra’i raʻi", "ra’i ra'i"),  # both are in use
        (["٣"], "12 ३", "١٢ ٣"),  # of digits all of a script
        (["a"], "’ 1", "’ 1"),
    ],
)
def test_what_is_rare_is_spelled_as_what_is_common(texts, before, after):
    assert before.translate(spelling(texts)) == after


def test_two_spellings_are_no_rule():
    assert spelling(["a–b", "a-b"], share=0.9) == {}


def test_an_apostrophe_is_named_with_its_effect_and_the_cure():
    targets = ["ne ra’icha japi anili", "mapu tamujé siné kachi ke"]
    train = [target.replace("’", "'") for target in targets]
    # One of nine words is wrong, so of n-grams 8/9, 5/7, 3/5 and 2/3 are right: 0.254^(1/4).
    (line,) = differences("es-tar", {"train": lines(*train), "dev": lines(*targets)})
    assert "es-tar: a perfect translation that writes ’ as train does would score 71.0" in line
    assert " BLEU on dev; --set=dev_spelling=True" in line
    assert not differences("es-tar", {"train": lines(*targets), "dev": lines(*targets)})
    (line,) = differences("es-tar", {"train": lines(*train), "test": lines(*targets)})
    assert line.endswith("on test")  # never acted on


def test_lengths_are_named_with_the_modifier_that_helps():
    samples = {"train": lines("abc"), "dev": lines("abc abcabc"), "test": lines("abc")}
    assert differences("a-b", samples) == [
        "a-b: targets of dev have 10 characters, those of train 3: try lingvo-moe-train "
        "--set='input.modifiers=(Merging(share=0.3,most=3),)'"
    ]
    assert differences("a-b", {"train": lines("abcabc"), "dev": lines("abc")}) == [
        "a-b: targets of dev have 3 characters, those of train 6"
    ]
    assert differences("a-b", {"train": lines("abcabc")[:9], "dev": lines("abc")}) == []
