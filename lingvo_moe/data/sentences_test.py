import importlib
import sys

import pytest

from lingvo_moe.data import sentences
from lingvo_moe.data.sentences import Part, join_parts, split_sentences, split_texts


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", ""),
        ("en", "one"),
        ("en", "One. |Two!"),
        ("en", "Dr. Smith met Mr. J. R. Brown. |He paid $3.50, e.g. in the U.S. or Rome."),
        ("en", 'He has 3.5 litres? |"Yes. |There are more." |(One. |Or two.) So.'),
        ("en", 'He said: "Go. Now!" |Then he left.'),
        ("en", "One… two. |Three… |Four."),
        ("en", "1. First. |2. Second. |See page 25."),
        ("en", "Yes. . . . |No."),
        ("en", "Foo.Bar is. |It."),
        ("en", "It works. 12 345."),
        ("en", "Hepatitis B\u00a0. |So vitamin C\u202f! |It\u3000works\u00a0."),
        ("en", "one\u2028|two \u2029 |three\x85|four"),
        ("en", "." * 100_000),
        ("en", f"one{' ' * 100_000}two"),
        ("en", "One.\n|Two?\r\n|Three."),
        ("fr", "Au 19. siècle, art. 5 et al. ont dit. |Il partait. |Deux."),
        ("en", "the end.\n|is not here"),
        ("de", "Er kam am 3. Mai mit Dr. Ott, z.B. um 7:30. |Nr. 5 fehlt."),
        ("de", "Der 2. Weltkrieg, im XX. Jahrhundert, endete 1945. |Danach kam die 5. Auflage."),
        ("hrv", "Bio je 2. Svjetski rat. |On."),
        ("en", "It has 2. |We have 5."),
        ("deu_Latn", "Er kam am 3. Mai. |Nr. 5 fehlt."),
        ("zh_Hans", "一。|二！」|三"),
        ("ja", "「はい。」|と言った。|次"),
        ("hi", "क। |ख। |ग।"),
        ("ur", "یہ ہے۔ |وہ ہے۔"),
        ("ar", "كيف؟ |نعم."),
        ("my", "မြန်မာ။ |စာ။|ကို"),
        ("km", "ខ្ញុំ។ |អ្នក។|គេ"),
        ("bo", "བོད་ཡིག །|ཡིག་ཆ །  ། |གསུམ།"),
        ("hy", "Բարեւ։ |Ինչպես եք։ |Լավ"),
        ("am", "ሰላም። |እንዴት ነህ። |ደህና"),
        ("el", "Τι κάνεις; |Καλά."),
        ("te", "ఇది పిత. |అది పిత. |(A. Ray)"),  # its last letter comes after a mark
        ("fr", "Deux cafe\u0301s. |Oui‼ |Non."),
        ("qna", "mi kara. |so ti! |ra"),
    ],
)
def test_texts_are_split_after_the_ends_of_sentences(language, text):
    assert "|".join(split_sentences(text.replace("|", ""), language)) == text


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Ott met J. R. Ray. |He paid 3.50! |So",
        "一。|二！」|三",
        "ខ្ញុំ។ |အ။ |one\u2028|two",
        "ক।|ᱚ᱾ |ꯃ꯫ |ሀ፧|ܐ܀ |ᓀ᙮ |ߒ߹ |क॥ |ꙋ",
    ],
)
def test_without_sentencex_punctuation_ends_sentences(text, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    alone = importlib.util.module_from_spec(sentences.__spec__)
    sentences.__spec__.loader.exec_module(alone)
    assert "|".join(alone.split_sentences(text.replace("|", ""))) == text


def test_joined_parts_keep_the_white_space_between_them_on_one_line():
    def joined(texts, spaces):
        parts = [Part("a", 1, space) for space in (*spaces, "")]
        return join_parts(texts, parts)

    assert joined(["One.", "Two.", "", "Four."], " \t ") == "One. Two. Four."
    assert joined(["One.", "Two."], [""]) == "One. Two."
    assert joined(["One.", "Two."], ["\u2028"]) == "One. Two."
    assert joined(["一。", "二。”", "三.", "네."], ["", " ", " "]) == "一。二。”三. 네."
    assert joined(["一。", "”", "二"], ["", ""]) == "一。”二"


def letters(texts):
    """Each letter is a token, and full stops are none."""
    return [len(text.strip().replace(".", "")) for text in texts]


@pytest.mark.parametrize(
    ("text", "room", "parts"),
    [
        (" ab. c. ", 9, ["ab.", "c."]),  # 3 letters fit into 9, but are two sentences
        ("ab cd", 9, ["ab cd"]),
        (" ab ", 9, [" ab "]),
        ("abcd; ef, gh ijklm", 12, ["abcd;", "ef, gh ijklm"]),  # a better place than ","
        ("abcdefg, hi jk", 9, ["abcdefg,", "hi jk"]),
        ("a; bcde fghij", 9, ["a; bcde", "fghij"]),  # ";" is too far from the middle
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("กิกิ", 3, ["กิ", "กิ"]),  # a vowel sign stays with its letter
        ("ab www.cdefghijk.com/lm no", 9, ["ab", "www.cdefghijk.com/lm", "no"]),
        (" ", 9, []),
        ("...", 9, []),
    ],
)
def test_a_long_sentence_is_cut_until_it_fits(text, room, parts):
    (found,) = split_texts([text], "en", room, letters)
    assert [part.text for part in found] == parts
    assert [part.size for part in found] == [min(size, room) for size in letters(parts)]
