import time

import pytest

from lingvo_moe.data.surface import copy_of, is_decomposed, lowered, raised, shouted, wordless


@pytest.mark.parametrize(
    "text",
    ["102", "٨٢٥", "3.5 %", "...", "😀👍🏽 👩‍👩‍👧", "ℹ️", "1️⃣", "\u0301", "\u093f", "Ⅷ", "http://a.de/x?y=Köln",
     "(see@example.org),", "www.a.de", "example.com/a", "1. https://a.b 2. a@b.de", "", "\u200b"],
)  # fmt: skip
def test_lines_without_words(text):
    assert wordless(text)
    assert copy_of(text) == ("" if text == "\u200b" else text)


@pytest.mark.parametrize(
    "text",
    ["5 km", "ok", "é", "न", "看https://a.b", "https://a.b，谢谢", "see a@b.de", "a@b", "und/oder"],
)
def test_lines_with_words(text):
    assert not wordless(text)


def test_a_long_line_takes_little_time():
    start = time.process_time()
    for text in (
        "a" * 300_000,
        "a." * 150_000,
        "a@" * 150_000,
        "(" * 300_000 + "é",
        "A." * 150_000,
        f"www.{')' * 300_000}、",
        f"a.com/{')' * 300_000}、",
        f"a@a.com{')' * 300_000}、",
    ):
        wordless(text), shouted(text), raised(lowered(text), "el")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    ["HELLO", "I AM", "NO ENTRY!", "ПРИВЕТ", "STRAßE 1", "LA 1ª VEZ",
     "E\u0301TE\u0301 X", "D\u02bcOR X"],
)  # fmt: skip
def test_lines_in_capitals(text):
    assert shouted(text)


@pytest.mark.parametrize(
    "text",
    ["NATO", "USB 3.0", "A", "HELLo WORLD", "NBA 和 CBA",
     "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ႠႡႢ ႣႤႥ", "გამა", "שלום", "102"],
)  # fmt: skip
def test_acronyms_and_scripts_without_case_are_not_in_capitals(text):
    assert not shouted(text)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("«HALT!» ER KAM. ES WAR 1 UHR.", "de", "«halt!» er kam. es war 1 uhr."),
        ("IRMAK", "tr", "ırmak"),
        ("IRMAK", "TR@x", "ırmak"),
        ("IŞIK VE İP", None, "ışık ve ip"),  # the İ tells the language
        ("IN IT", None, "in it"),
        ("ΑΣ ΠΑΜΕ ΣΤΟΥΣ ΔΡΟΜΟΥΣ", "el", "ας παμε στους δρομους"),  # the last sigma of a word
        ("ᲒᲐᲛᲐ ᲠᲯᲝᲑᲐ", "ka", "გამა რჯობა"),
    ],
)
def test_lower_case(text, language, expected):
    assert lowered(text, language) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("irmak ılık", "tur_Latn", "İRMAK ILIK"),
        ("it is", "trx", "IT IS"),
        ("Straße", "de", "STRASSE"),
        ("νεράιδα, μαΐου, ώς", "el", "ΝΕΡΑΪΔΑ, ΜΑΪΟΥ, ΩΣ"),
        ("ﬁne e\u0301", "fr", "FINE É"),
    ],
)
def test_capitals(text, language, expected):
    assert raised(text, language) == expected


def test_texts_are_decomposed_if_most_of_those_that_differ_are():
    texts = ["e\u0301"] * 9 + ["plain"] * 9
    assert is_decomposed([*texts, "\xe9"])
    assert not is_decomposed([*texts, "\xe9", "\xe9"])
    assert not is_decomposed(texts)  # too few that differ
