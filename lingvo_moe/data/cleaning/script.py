"""Text in another script than that of its language."""

import dataclasses
import functools
import unicodedata
from collections.abc import Mapping

from lingvo_moe.core.fields import Share
from lingvo_moe.data.cleaning.base import CleaningRule

# Script, the first word of its letters' names in Unicode -> languages written only in it.
_LANGUAGES = {
    "ARABIC": "ar arz ary fa ur ps ckb ug",
    "ARMENIAN": "hy",
    "BENGALI": "bn as",
    "CJK": "zh yue lzh wuu",
    "CYRILLIC": "ru uk be bg mk kk ky mn tg ba tt cv",
    "DEVANAGARI": "hi mr ne sa bho mai",
    "ETHIOPIC": "am ti",
    "GEORGIAN": "ka xmf",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he yi",
    "KANNADA": "kn",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": (
        "af az br ca cs cy da de en eo es et eu fi fo fr fy ga gd gl hr hu id is it ku la lb lt lv "
        "mg ms mt nb nl nn no oc pl pt ro sk sl sq sv sw tl tr vi"
    ),
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAANA": "dv",
    "THAI": "th",
    "TIBETAN": "bo dz",
}
_OF_LANGUAGE = {
    language: {script} for script, codes in _LANGUAGES.items() for language in codes.split()
} | {"ja": {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}}
# Scripts in the codes of some languages, such as sr_Cyrl (ISO 15924).
_CODES: Mapping[str, set[str]] = {
    "Arab": {"ARABIC"},
    "Armn": {"ARMENIAN"},
    "Beng": {"BENGALI"},
    "Cyrl": {"CYRILLIC"},
    "Deva": {"DEVANAGARI"},
    "Ethi": {"ETHIOPIC"},
    "Geor": {"GEORGIAN"},
    "Grek": {"GREEK"},
    "Gujr": {"GUJARATI"},
    "Guru": {"GURMUKHI"},
    "Hang": {"HANGUL"},
    "Hans": {"CJK"},
    "Hant": {"CJK"},
    "Hebr": {"HEBREW"},
    "Jpan": {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    "Khmr": {"KHMER"},
    "Knda": {"KANNADA"},
    "Laoo": {"LAO"},
    "Latn": {"LATIN"},
    "Mlym": {"MALAYALAM"},
    "Mymr": {"MYANMAR"},
    "Orya": {"ORIYA"},
    "Sinh": {"SINHALA"},
    "Taml": {"TAMIL"},
    "Telu": {"TELUGU"},
    "Thai": {"THAI"},
    "Tibt": {"TIBETAN"},
}


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
        return frozenset(_CODES.get(named[0], ()))
    return frozenset(_OF_LANGUAGE.get(name.lower(), ()))


@functools.lru_cache(1 << 16)
def script_of(letter: str) -> str:
    """The first word of a letter's name in Unicode, which is its script."""
    name = unicodedata.name(letter, "")
    # FULLWIDTH LATIN SMALL LETTER A, HALFWIDTH KATAKANA LETTER KA
    return name.removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").partition(" ")[0]
