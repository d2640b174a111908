"""The surface of a line: words, capitals, and the form of accents (NFC or NFD).

A line without words is copied. A line in capitals is translated in lower case, and its
translation is put in capitals. `serving/graph_surface.py` does the same in a graph, so patterns are
those that Python and RE2 read alike.

Exported models contain a copy of this file, so it imports only the standard library and `lines`.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable

from lingvo_moe.system.lines import is_blank, one_line

GAP = (  # between words: spaces, control characters and marks of direction
    "\0-\x20\x7f-\xa0\xad\u1680\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff"
)
_IN_URL = f"[^{GAP}\u3001-\u303f\uff00-\uff65]"  # not the punctuation of Chinese and Japanese
_DOMAIN = "[A-Za-z0-9.-]"  # no (?i), which Python and RE2 read differently: K, ſ and İ
_HOST = rf"{_DOMAIN}+\.(?:com|edu|gov|net|org|COM|EDU|GOV|NET|ORG)"
ADDRESS = (  # a URL, a domain or an e-mail address, in brackets or quotes
    r"""[("'<\[{]*(?:"""
    rf"""(?:[A-Za-z][A-Za-z0-9+.-]*://|[Ww]{{3}}\.){_IN_URL}+"""
    rf"""|{_HOST}[/:?#]{_IN_URL}*"""
    rf"""|(?:{_HOST}|(?:mailto:)?[A-Za-z0-9._%+-]+@{_DOMAIN}+\.[A-Za-z0-9-]+)"""
    r"""[)"'>\]},.;:!?]*)"""
)
INFORMATION = "ℹ"  # an emoji that Unicode counts as a letter
SMALL = "ß" + INFORMATION  # lower-case letters that a line in capitals may have
ORDINALS = "ªº"  # the same for letters without case
# Capitals that are ordinary letters, since their texts have no others: Cherokee and Asomtavruli.
CASELESS = "Ꭰ-ᏵႠ-Ⴭ"
LONGEST_ACRONYM = 4  # letters
DOTTED = "(?i)(?:tr|tur|az|aze|azj|crh|gag)(?:[-_@].*)?"  # languages in which the capital of i is İ
GREEK = "(?i)(?:el|ell|gre|grc)(?:[-_@].*)?"
# Of a diphthong whose first letter loses its accent, the second gets a diaeresis: άι, ΑΪ.
HIATUS = ("([ΑΕΟΥ])\u0301([ΙΥ])\u0308?", "\\1\\2\u0308")
GREEK_ACCENTS = "[\u0300\u0301\u0313\u0314\u0342]"

_gap, _address, _caseless = map(re.compile, (f"[{GAP}]+", ADDRESS, f"[{CASELESS}]"))


def wordless(text: str) -> bool:
    """Whether a line has nothing to translate.

    Each part between spaces has no letter (Unicode's categories L*; ℹ is an emoji), such as
    numbers, punctuation, emoji and combining marks alone, or is a URL, a domain such as example.com
    or an e-mail address.
    """
    return all(
        not any(unicodedata.category(c).startswith("L") and c != INFORMATION for c in part)
        or bool(_address.fullmatch(part))
        for part in _gap.split(text)
    )


def copy_of(text: str) -> str:
    """The "translation" of a line without words: the line, or nothing if it is blank."""
    return "" if is_blank(text) else one_line(text)


def shouted(text: str) -> bool:
    """Whether a line is all in capitals, other than an acronym.

    It has capitals in at least two words, or more than four in one, and no other letters but ß, ª,
    º and those without case that modify others (category Lm). So "USB" and "NATO" are no such
    lines, and neither is a Chinese one with acronyms. Cherokee has no capitals here.
    """
    if any(map(_is_ordinary, text)):
        return False
    sizes = [sum(map(_is_capital, word)) for word in _gap.split(text)]
    return sum(map(bool, sizes)) > 1 or sum(sizes) > LONGEST_ACRONYM


def as_read(text: str, language: str | None = None) -> str:
    """A line as a model reads it: `lowered` if it is in capitals."""
    return lowered(text, language) if shouted(text) else text


def as_written(text: str, source: str, language: str, decomposed: Collection[str] = ()) -> str:
    """A model's translation of the line `source` as a user reads it: `raised` if that is in
    capitals, and in NFD if its language is `decomposed`."""
    text = raised(text, language) if shouted(source) else text
    return unicodedata.normalize("NFD", text) if language in decomposed else text


def is_decomposed(texts: Iterable[str]) -> bool:
    """Whether at least 90 % of the texts whose NFC and NFD differ are in NFD; false for fewer than
    ten such texts."""
    apart = [(text, unicodedata.normalize("NFD", text)) for text in texts]
    differ = [text == nfd for text, nfd in apart if unicodedata.normalize("NFC", text) != nfd]
    return len(differ) >= 10 and sum(differ) >= 0.9 * len(differ)


def lowered(text: str, language: str | None = None) -> str:
    """A line in capitals in lower case, which models know of text with capitals and without. In
    Turkish, and wherever there is an İ, the lower case of I is ı."""
    dotted = "İ" in text or is_dotted(language)
    return text.replace("I", "ı" if dotted else "i").replace("İ", "i").lower()


def raised(text: str, language: str) -> str:
    """A text in capitals, in NFC. The capital of i is İ in Turkish. Greek ones have no accents."""
    text = _upper(text, is_dotted(language))
    if re.fullmatch(GREEK, language):
        text = re.sub(*HIATUS, unicodedata.normalize("NFD", text))
        text = re.sub(GREEK_ACCENTS, "", text)
    return unicodedata.normalize("NFC", text)


def is_dotted(language: str | None) -> bool:
    """Whether the capital of i is İ, as in Turkish."""
    return bool(language and re.fullmatch(DOTTED, language))


def _upper(text, dotted):
    return text.replace("i", "İ" if dotted else "I").upper()


def _is_capital(character):
    return unicodedata.category(character) == "Lu" and not _caseless.match(character)


def _is_ordinary(character):
    """Whether a letter cannot be in a line in capitals."""
    category = unicodedata.category(character)
    return (
        (category == "Ll" and character not in SMALL)
        or (category == "Lo" and character not in ORDINALS)
        or bool(_caseless.match(character))
    )
