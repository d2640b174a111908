"""Text in another script than that of its language."""

import dataclasses
import functools
import unicodedata

from lingvo_moe.core.fields import Share
from lingvo_moe.data.cleaning.base import CleaningRule

# A script's code (ISO 15924), the first word of its letters' names in Unicode, and the languages
# that are written only in it.
_SCRIPTS = """
Arab ARABIC ar arz ary fa ur ps ckb ug
Armn ARMENIAN hy
Beng BENGALI bn as
Cyrl CYRILLIC ru uk be bg mk kk ky mn tg ba tt cv
Deva DEVANAGARI hi mr ne sa bho mai
Ethi ETHIOPIC am ti
Geor GEORGIAN ka xmf
Grek GREEK el
Gujr GUJARATI gu
Guru GURMUKHI pa
Hang HANGUL ko
Hans CJK zh yue lzh wuu
Hant CJK
Hebr HEBREW he yi
Jpan CJK,HIRAGANA,KATAKANA,KATAKANA-HIRAGANA ja
Khmr KHMER km
Knda KANNADA kn
Laoo LAO lo
Latn LATIN af az br ca cs cy da de en eo es et eu fi fo fr fy ga gd gl hr hu id is it ku
Latn LATIN la lb lt lv mg ms mt nb nl nn no oc pl pt ro sk sl sq sv sw tl tr vi
Mlym MALAYALAM ml
Mymr MYANMAR my
Orya ORIYA or
Sinh SINHALA si
Taml TAMIL ta
Telu TELUGU te
Thaa THAANA dv
Thai THAI th
Tibt TIBETAN bo dz
"""
_CODES: dict[str, frozenset[str]] = {}
_OF_LANGUAGE: dict[str, frozenset[str]] = {}
for _code, _names, *_languages in map(str.split, _SCRIPTS.strip().splitlines()):
    _CODES[_code] = frozenset(_names.split(","))
    _OF_LANGUAGE |= dict.fromkeys(_languages, _CODES[_code])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script(CleaningRule):
    """A side has too few letters of its language's script. Unknown languages are not checked.

    Attributes:
        share: the least share of a side's letters that is kept.
    """

    name = "script"
    share: Share = 0.5

    def drops(self, texts, languages):
        return any(map(self._is_other, texts, languages))

    def _is_other(self, text, language):
        expected = scripts(language)
        found = [script_of(c) in expected for c in text if c.isalpha()] if expected else []
        return sum(found) < self.share * len(found)


@functools.cache
def scripts(language: str) -> frozenset[str]:
    """The scripts of a language's code, in any case; none if they are not known."""
    name, *parts = language.replace("@", "_").split("_")
    named = [part.title() for part in parts if len(part) == 4 and part.isalpha()]
    if named:  # a script that is not known must not count as the usual one of the language
        return _CODES.get(named[0], frozenset())
    return _OF_LANGUAGE.get(name.lower(), frozenset())


@functools.lru_cache(1 << 16)
def script_of(letter: str) -> str:
    """The first word of a letter's name in Unicode, which is its script."""
    name = unicodedata.name(letter, "")
    # FULLWIDTH LATIN SMALL LETTER A, HALFWIDTH KATAKANA LETTER KA
    return name.removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").partition(" ")[0]
