"""Rules that drop bad lines of a corpus."""

import dataclasses
import functools
import unicodedata
from typing import Annotated

from lingvo_moe.config.fields import NonNegativeInt, PositiveInt, Rule, Share
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damaged(CleaningRule):
    """A side has U+FFFD (it stands for a lost character), a control character other than tab, or a
    code point that Unicode never assigns."""

    name = "damaged"

    def drops(self, texts, languages):
        odd = {c for text in texts if not text.isprintable() for c in text} - {"\t"}
        return any("\ufffd" in text for text in texts) or any(
            unicodedata.category(c) == "Cc"
            or ord(c) & 0xFFFE == 0xFFFE
            or 0xFDD0 <= ord(c) <= 0xFDEF
            for c in odd
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identical(CleaningRule):
    """Both sides are equal, except for case. Lines of at most `longest` characters are kept, as
    names are often equal."""

    name = "identical"
    longest: NonNegativeInt = 20

    def drops(self, texts, languages):
        source, target = texts
        return len(source) > self.longest and source.casefold() == target.casefold()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthRatio(CleaningRule):
    """One side has many times the letters of the other.

    Characters are counted, wide ones three times: a Chinese character is worth about three letters.

    Attributes:
        largest: the largest ratio that is kept.
        added: letters that are added to both sides first, so that short lines may differ more.
    """

    name = "length_ratio"
    largest: Annotated[float, Rule("> 1", lambda ratio: ratio > 1)] = 4.0
    added: NonNegativeInt = 15

    def drops(self, texts, languages):
        wide = (sum(unicodedata.east_asian_width(c) in "WF" for c in text) for text in texts)
        shorter, longer = sorted(
            len(text) + 2 * more + self.added for text, more in zip(texts, wide, strict=True)
        )
        return longer > self.largest * shorter


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
    """A side has fewer than `share` of its letters in its language's script. Unknown languages are
    not checked."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language(CleaningRule):
    """A side is in another language, as py3langid finds (extra `langid`).

    Languages that py3langid does not know are not checked.

    Attributes:
        probability: a line is dropped if the other language has at least this probability.
        shortest: texts with fewer characters are not checked.

    Raises ImportError: py3langid is not installed.
    """

    name = "language"
    probability: Share = 0.9
    shortest: PositiveInt = 20

    def __post_init__(self):
        super().__post_init__()
        _identifier()  # an error before any work

    def drops(self, texts, languages):
        return any(map(self._is_other, texts, languages))

    def _is_other(self, text, language):
        expected = language.lower().replace("@", "_").partition("_")[0]
        if len(text) < self.shortest or expected not in _identifier().labels:
            return False
        found, probability = _identifier().classify(text)
        return found != expected and probability >= self.probability


@functools.cache
def _identifier():
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise ImportError(
            "The cleaning rule Language needs py3langid: pip install py3langid."
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
