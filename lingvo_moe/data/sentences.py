"""Splits texts into what a model translates as a whole: sentences, and parts of very long ones.

Exports contain a copy of this file, so it needs only the standard library. Without the package
sentencex it finds ends of sentences by punctuation alone.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from lingvo_moe.data.surface import as_read, as_written, copy_of, wordless
from lingvo_moe.system.lines import LINE_ENDS, one_line

_CLOSING = """["')\\]»”’」』）》】]*"""
_OPENING = "\"'“‘„«»([「『（《"
try:
    from sentencex import segment
except ImportError:
    _END = re.compile(
        rf"(?<!\b[A-Z]\w)(?<![.!?])[.!?]+{_CLOSING}\s+"  # "Dr." is no end
        rf"|[؟۔।॥။։܀-܂።፧༎᙮᭞᭟᱾᱿。꓿꘎꘏꛳꧈꧉꩝-꩟꫰꫱꯫߹！？．｡]+{_CLOSING}\s*"
    )

    def segment(language: str, text: str) -> list[str]:
        """The sentences of a text, each with the spaces after it."""
        del language
        return _pieces(_END, text)


# sentencex has rules for codes of two letters.
_CODES = dict(
    re.findall(
        r"(\w+):(\w+)",
        "amh:am ara:ar ben:bn bul:bg cat:ca ces:cs dan:da deu:de ell:el eng:en fin:fi fra:fr guj:gu"
        " hin:hi hye:hy ita:it kan:kn kaz:kk mal:ml mar:mr mya:my nld:nl ory:or pan:pa pol:pl"
        " por:pt rus:ru slk:sk spa:es tam:ta tel:te ukr:uk",
    )
)
# Ends that sentencex does not know: of Khmer and Tibetan, "…" and line ends inside a text.
_MORE_ENDS = re.compile(
    rf"[។៕༈།-༒༔‼⁇-⁉]+{_CLOSING}\s*|…{_CLOSING}\s+(?=[A-ZÀ-ÞΑ-ΩА-Я])"
    rf"|(?<!\s)\s*{LINE_ENDS}\s*"  # from the first space, else each of n spaces reads the others
)
# No end: an initial ("J."), which is no letter after a mark, and a point without a space after it.
_NO_END = re.compile(rf"(?<![^\s.\-{re.escape(_OPENING)}])[^\W\d_]\.\s*\Z|[.!?]\Z")
# The end of an abbreviation or a number before a digit, and of any word before other characters.
_SHORT_POINT, _POINT = (
    re.compile(rf"{word}\.(?:(?!{LINE_ENDS})\s)*\Z") for word in (r"\b[^\W\d_]{2,4}", r"\w")
)
# Where a long sentence is cut, the best place first; of its length, what is too near its ends.
_CUTS = (
    (0.25, re.compile(r"[;:؛]\s+|[；：]\s*")),
    (0.25, re.compile(r"[,،]\s+|[，、]\s*")),
    (0.0, re.compile(r"\s+")),
)
# Chinese and Japanese have no space between sentences.
_NO_SPACE_AFTER = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff9f][”’]?$")
# Languages that write "2nd" as "2.", and such a number, at the end of a text.
_WITH_ORDINALS = re.compile(
    "de|cs|sk|pl|da|fi|tr|no|nb|nn|nob|nno|hu|hun|et|est|ekk|lv|lav|lvs|lt|lit|sl|slv|hr|hrv|sr|srp"
    "|bs|bos|is|isl|fo|fao|lb|ltz|hsb|dsb"
)
_ORDINAL = re.compile(r"(?<![\w:,.])(?:\d{1,2}|[IVX]+)\.\s*\Z")


class Part(NamedTuple):
    """What is translated as a whole."""

    text: str  # the text as it is read
    size: int  # number of tokens
    after: str = ""  # the white space between it and the next part
    given: str = ""  # the text before `as_read`, which may be in capitals


def sentence_language(given: str | None, to: str, pairs: Sequence[str]) -> str:
    """The language whose rules split a text: the given one, or that of the only pair such as
    "de-en" into the target language, or English."""
    sources = {source for source, _, target in (p.rpartition("-") for p in pairs) if target == to}
    return given or (sources.pop() if len(sources) == 1 else "en")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text, each with the white space after it; joined they equal the text,
    which begins with no space. What has no words belongs to the sentence after it, or to the last
    one. The language is a code; of an unknown one the rules for most languages hold."""
    code = re.split("[-_@]", language)[0].lower()
    code = _CODES.get(code, code)
    # sentencex can fail beside white space that is not ASCII.
    plain = re.sub(r"[^\S\x00-\x7f]", " ", text)
    cased = text != text.lower()
    places = itertools.accumulate(map(len, _segments(code, plain)), initial=0)
    found = (text[start:end] for start, end in itertools.pairwise(places))
    sentences: list[list[str]] = [[]]
    bare = True
    for piece in (piece for one in found for piece in _pieces(_MORE_ENDS, one)):
        rest = piece.lstrip()
        sentences[-1].append(piece[: len(piece) - len(rest)])
        before = "".join(sentences[-1][-2:])[-9:]
        ends = not (
            _NO_END.search(before)
            or (cased and _goes_on(before, rest))
            or (_WITH_ORDINALS.fullmatch(code) and _ORDINAL.search(before))
        )
        if not bare and ends and re.search(r"\w", rest):
            sentences.append([])
            bare = True
        sentences[-1].append(rest)
        bare = bare and wordless(rest)
    if bare and len(sentences) > 1:
        sentences[-2:] = [sentences[-2] + sentences[-1]]
    return list(map("".join, sentences))


def split_texts(
    texts: Sequence[str],
    language: str,
    room: int,
    count: Callable[[list[str]], Sequence[int]],
) -> list[list[Part]]:
    """The parts of each text, as it is read (see `as_read`): its sentences; one of more than `room`
    tokens is cut, near its middle, until it fits. `count` gives the numbers of tokens of texts. A
    text without words or tokens has no parts."""
    texts = [as_read(text, language) for text in texts]
    split = [[] if wordless(text) else split_sentences(text.strip(), language) for text in texts]
    while True:
        texts_of_parts = [as_read(part.rstrip(), language) for parts in split for part in parts]
        lengths = iter(count(texts_of_parts) if texts_of_parts else ())
        sized = [[(one, _size(one, next(lengths), room)) for one in parts] for parts in split]
        shorter = [
            [half for part, size in parts for half in (_halves(part) if size > room else [part])]
            for parts in sized
        ]
        if shorter == split:
            break
        split = shorter
    return [
        [
            Part(as_read(one, language), size, part[len(one) :], one)
            for part, size in parts
            for one in [part.rstrip() if len(parts) > 1 else text]
            if size
        ]
        for text, parts in zip(texts, sized, strict=True)
    ]


def left_out(parts: Sequence[Part], room: int) -> int:
    """The number of tokens of parts that could not be cut any shorter and are not read."""
    return sum(max(0, part.size - room) for part in parts)


def join_parts(translations: Sequence[str], parts: Sequence[Part]) -> str:
    """One line of the translations of parts, with the white space that was between the parts.

    It is a space if there was none. Chinese and Japanese have no space between sentences.
    """
    joined, end, space = [], "", ""
    for text, part in zip(translations, parts, strict=True):
        if end and text:
            plain = "" if _NO_SPACE_AFTER.search(end) else " "
            joined.append(plain if space in ("", " ") else one_line(space))
        joined.append(text)
        end, space = (end + text)[-2:], part.after
    return "".join(joined)


def written(
    text: str,
    to: str,
    parts: Sequence[Part],
    found: Sequence[str],
    decomposed: Collection[str] = (),
) -> str:
    """The translation of a text from those of its parts, or a copy of a text without words;
    `decomposed` has the languages that are written in NFD."""
    if parts:
        found = [as_written(one, part.given, to) for one, part in zip(found, parts, strict=True)]
        return as_written(join_parts(found, parts), text, to, decomposed)
    return copy_of(text) if wordless(text) else ""


def _segments(code: str, text: str) -> Iterator[str]:
    """The sentences of sentencex, which takes what is in quotes or brackets for one sentence."""
    for quoted in segment(code, text):
        rest = quoted.lstrip(_OPENING)
        first, *others = segment(code, rest) or [""]
        yield quoted[: len(quoted) - len(rest)] + first
        yield from others


def _goes_on(before: str, rest: str) -> bool:
    """Whether a point ends no sentence, by what follows in its line: a lower-case letter ("19.
    siècle") or, after a short word, a digit ("art. 5")."""
    if rest[:1].isdigit():
        return bool(_SHORT_POINT.search(before))
    return rest[:1].islower() and bool(_POINT.search(before))


def _pieces(ends: re.Pattern[str], text: str) -> list[str]:
    """The pieces of a text between matches, each with the match after it."""
    places = [0, *(match.end() for match in ends.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places) if start < end]


def _size(part: str, tokens: int, room: int) -> int:
    """What has no words is copied, so it is never too long."""
    return min(tokens, room) if wordless(part) else tokens


def _halves(text: str) -> list[str]:
    """Two parts of a text, or one if it cannot be cut."""
    size = len(text)
    for margin, cuts in _CUTS:
        ends = [m.end() for m in cuts.finditer(text) if margin < m.end() / size < 1 - margin]
        if ends:
            cut = min(ends, key=lambda end: abs(2 * end - size))
            break
    else:
        cut = size // 2
        while cut < size and unicodedata.category(text[cut]).startswith("M"):
            cut += 1  # a mark belongs to the letter before it
    return [half for half in (text[:cut], text[cut:]) if half]
