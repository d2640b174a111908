import sys

import pytest

from lingvo_moe.config.params import override
from lingvo_moe.data.cleaning import rules
from lingvo_moe.data.cleaning.base import Exact, Near
from lingvo_moe.data.cleaning.rules import (
    Damaged,
    Identical,
    Language,
    LengthRatio,
    Script,
)
from lingvo_moe.data.prepare_params import PrepareParams

LONG = "this is a sentence"


@pytest.mark.parametrize(
    ("rule", "dropped", "texts", "languages"),
    [
        (Damaged(), True, ("Stra\ufffde", "street"), "de-en"),
        (Damaged(), True, ("a", "b\ufdd0"), "de-en"),
        (Damaged(), False, ("a\tb\u200dc\u3000", "👩‍💻 ½"), "de-en"),
        (Identical(longest=3), True, ("Hello", "hELLO"), "de-en"),
        (Identical(longest=3), False, ("Hello", "Hallo"), "de-en"),
        # 10 + 5 bytes against 40 + 5 are three times as many, not more.
        (LengthRatio(largest=3, added=5), False, ("x" * 10, "y" * 40), "de-en"),
        (LengthRatio(largest=3, added=5), True, ("x" * 10, "y" * 41), "de-en"),
        (LengthRatio(largest=1.2, added=0), False, ("你好世界", "hello world!"), "zh-en"),
        # 35 characters of three bytes each, and 18 of one byte
        (LengthRatio(largest=2, added=0), False, ("བོད་ཡིག" * 5, "x" * 18), "dz-en"),
        (Script(), True, ("это не английский", "it is not"), "en-en"),
        (Script(), True, ("not Greek", "x"), "el-en"),
        (Script(), False, ("日本語のテスト", "test"), "ja-en"),
        (Script(), False, ("это GNU да нет", "this is GNU"), "ru-en"),
        (Script(), False, ("whatever это", "x"), "xyz-en"),
        (Script(), True, ("whatever", "x"), "sr_Cyrl-en"),
        (Script(), False, ("это", "x"), "sr_CYRL-en"),
        (Script(), False, ("ᠮᠣᠩᠭᠣᠯ", "x"), "mn_Mong-en"),  # a script that is not known
        (Script(), False, ("12 - 3 !", "12"), "ru-en"),
        (Language(), True, ("Das ist ein deutscher Satz über das Wetter.", LONG), "FR-en"),
        (Language(), False, ("Das ist ein deutscher Satz über das Wetter.", LONG), "de-en"),
        (Language(), False, ("Das ist ein deutscher Satz über das Wetter.", LONG), "xyz-en"),
        (Language(), False, ("kurz", LONG), "fr-en"),
    ],
)
def test_what_each_rule_drops(rule, dropped, texts, languages):
    assert rule.drops(texts, tuple(languages.split("-"))) is dropped


def test_near_texts():
    near = Near()
    assert Exact().key("A b") != Exact().key("a b")
    assert near.key("Wie geht's, Du?") == near.key("wie gehts   DU")
    assert near.key("１２ ﬁ") == near.key("12 fi")
    assert near.key("12") != near.key("13")
    assert near.key("!") != near.key("?")
    assert near.key("कि") != near.key("का")  # vowel signs are content


def test_rules_are_params():
    text = "cleaning=(LengthRatio(largest=2), Script(), Identical(longest=5))"
    params = override(PrepareParams(), [text, "duplicates=Near()"])
    assert params.cleaning == (LengthRatio(largest=2.0), Script(), Identical(longest=5))
    assert params.duplicates == Near()
    with pytest.raises(ValueError, match=r"largest must be > 1, got 1"):
        override(PrepareParams(), ["cleaning=(LengthRatio(largest=1),)"])


def test_a_missing_extra_is_named(monkeypatch):
    rules._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(ImportError, match="pip install"):
        Language()
    rules._identifier.cache_clear()
