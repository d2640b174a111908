"""The rules of nfc against Python's unicodedata."""

import random
import unicodedata

import pytest

from lingvo_moe.data.normalization import NORMALIZATIONS, normalize, rules_model

# Letters, and marks of theirs.
SCRIPTS = {
    "Latin": ("AEOaeioușñǫ", "\u0300\u0301\u0308\u0323\u0328\u0329\u0331\u0358"),
    "any mark": ("aeɛßxŵ", "".join(map(chr, (*range(0x300, 0x340), *range(0x346, 0x370))))),
    "Greek": ("αωΗι", "\u0300\u0301\u0313\u0314\u0342\u0345"),
    "Cyrillic": ("иеЇд", "\u0301\u0306\u0308\u0331"),
    "Hebrew": ("שבו\ufb2a\ufb31", "\u05b0\u05b4\u05b7\u05bc\u05c1\u05c2\u05bf"),
    "Arabic": ("اويهۀ", "\u064b\u064e\u0650\u0651\u0652\u0653\u0654\u0655\u0670"),
    "Devanagari": ("कखड़नऩ", "\u093c\u094d\u0951\u0952"),
    "Bengali": ("ডযক", "\u09bc\u09cd"),
    "Thai": ("กเำ", "\u0e34\u0e38\u0e39\u0e48\u0e3a"),
    "Tibetan": ("ཀགྷ", "\u0f71\u0f72\u0f74\u0f39\u0f35"),
    "Myanmar": ("ကဥဦ", "\u102e\u1037\u1039\u103a"),
    "kana": ("かハヴ", "\u3099\u309a"),
}


def _nfc(text):
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("form", ["NFC", "NFD", "as typed"])
def test_two_marks_in_any_order(name, form):
    letters, marks = SCRIPTS[name]
    rng = random.Random(name)

    def word():
        letter = rng.choice(letters)
        room = 3 - len(unicodedata.normalize("NFD", letter))  # it may have marks itself
        return letter + "".join(rng.choices(marks, k=rng.randint(0, max(0, room))))

    texts = [" ".join(word() for _ in range(20)) for _ in range(100)]
    given = texts if form == "as typed" else [unicodedata.normalize(form, t) for t in texts]
    assert normalize(given) == [_nfc(text) for text in texts]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_every_character(form):
    every = [chr(i) for i in range(0xA1, 0x32000) if unicodedata.category(chr(i))[0] in "LNSM"]
    every = [c for c in every if c not in ("\u2581", "\u1680")]  # SentencePiece's space
    texts = [f"x{c}x" for c in every]  # some marks compose with nothing, and begin no text
    assert normalize([unicodedata.normalize(form, t) for t in texts]) == [_nfc(t) for t in texts]


def test_white_space_and_marks_that_spell_nothing():
    spaces = "\t\n\x85\xa0\u2003\u2028\u202f\u3000"
    assert normalize([f" \ufeff a{space}\u200e {space}b\u200b " for space in spaces]) == ["a b"] * 8
    marks = "\xad\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff\u061c\x01\x7f"
    assert normalize([f"{mark}a{mark}b{mark} c{mark}" for mark in marks]) == ["ab c"] * len(marks)
    # Persian and Indic scripts spell with joiners, emoji are joined by them, flags have tags.
    kept = [
        "می\u200cخواهم",
        "ක්\u200dෂ",
        "👩\u200d🔬",
        "🏴\U000e0067\U000e0062\U000e007f",
        "½ ， ﬁ ™",
    ]
    assert normalize(kept) == kept


def test_a_zero_width_space_separates_words_of_some_scripts():
    assert normalize(["ភាសា\u200bខ្មែរ\u200b។", "\u200bไทย\u200b คำ\u200bๆ", "a\u200bb"]) == [
        "ភាសា\u200bខ្មែរ។",
        "\u200bไทย คำๆ",
        "ab",
    ]
    assert normalize(["က\u200bဥ\u102e"]) == ["က\u200bဦ"]  # U+1025 U+102E is U+1026


@pytest.mark.parametrize("rules", NORMALIZATIONS)
def test_other_rules_are_those_of_sentencepiece(rules):
    expected = {
        "nfc": "½ é A",
        "identity": "½  e\u0301 A",
        "nfkc": "1⁄2 é A",
        "nmt_nfkc": "1⁄2 é A",
    }
    assert normalize(["½  e\u0301 A"], rules) == [expected.get(rules, "1⁄2 é a")]


def test_the_rules_are_the_same_bytes_in_every_process():
    first = rules_model("nfc").SerializeToString()
    rules_model.cache_clear()
    assert rules_model("nfc").SerializeToString() == first
