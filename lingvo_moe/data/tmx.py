"""Reads TMX, the XML of translation memories (LISA OSCAR, TMX 1.4b), as a stream."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from lingvo_moe.system.lines import one_line, open_bytes

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_STANDALONE = ("it", "ph", "ut")  # markup such as a line break or a picture
_CODES = ("bpt", "ept", *_STANDALONE)  # elements of a segment whose content is markup
_PART = "\0"  # stands for markup that stands alone; XML has no such character


def read_tmx(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Reads the translation units that have both languages: (source, target), stripped.

    `xml:lang` may be in any case, with "-" or "_". If a unit has no text with the code
    "sr_Latn", the first one with a longer code, such as "sr_Latn_RS", is used. If there is none,
    the first one with a code of "sr" that names no other script is used. The same text is never
    both source and target. Line ends in a segment become spaces, and so does markup that stands
    alone (`<ph>`, `<it>`, `<ut>`) between two words.

    Raises ValueError: the file is not well-formed XML, has an entity that it does not define, has
    no unit with both languages, or is compressed and damaged; OSError: the file cannot be read.
    """
    languages = _code(source), _code(target)
    seen: dict[str, None] = {}  # the languages, in order
    found = 0
    for unit in _units(path):
        texts: dict[str, str] = {}
        for variant in unit.iterfind("tuv"):
            language = _code(variant.get(_LANGUAGE) or variant.get("lang") or "")
            segment = variant.find("seg")
            seen[language] = None
            if segment is not None:
                text = re.sub(rf"(.){_PART}+(?=[^\W_])", _parted, _text(segment), flags=re.DOTALL)
                texts.setdefault(language, one_line(text.replace(_PART, "")).strip())
        first, second = (_held(texts, *pair) for pair in (languages, languages[::-1]))
        if first and second and first != second:
            found += 1
            yield texts[first], texts[second]
    if seen and not found:
        raise ValueError(
            f"{path} has no unit with a <seg> of both {' and '.join(languages)}; it has "
            f"{', '.join(list(seen)[:20])}. Name the file after two of these."
        )


def _parted(match):
    """What is before markup in front of a word; with a space after it if it ends a word."""
    before = match[1]
    return f"{before} " if unicodedata.category(before)[0] in "LMN" else before


def _units(path: Path) -> Iterator[ElementTree.Element]:
    """The <tu> elements; only one of them is in memory."""
    body = None
    with open_bytes(path) as file:
        try:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                element.tag = element.tag.rpartition("}")[2]
                if event == "start" and element.tag == "body":
                    body = element
                elif event == "end" and element.tag == "tu":
                    yield element
                    if body is not None:
                        body.clear()
        except (ElementTree.ParseError, LookupError) as error:  # LookupError: unknown encoding
            raise ValueError(
                f"{path} is not well-formed XML ({error}). Replace entities by their text."
            ) from error


def _text(element: ElementTree.Element) -> str:
    """The text of a segment, with _PART in place of markup that stands alone."""
    parts = [element.text or ""]
    for child in element:
        parts.append(_text(child) if child.tag not in _CODES else "")
        parts += [_PART * (child.tag in _STANDALONE), child.tail or ""]
    return "".join(parts)


def _held(texts: Mapping[str, str], language: str, other: str) -> str | None:
    """The language of a unit that serves as a language, but not as the other one."""
    if language in texts:
        return language
    main, *parts = language.split("_")
    codes = [code for code in texts if code.partition("_")[0] == main and code != other]
    longer = [code for code in codes if {*parts} <= {*code.split("_")}]
    script = _script(language)
    alike = [code for code in codes if not script or _script(code) in (None, script)]
    return next(iter([*longer, *alike]), None)


def _code(language: str) -> str:
    return language.replace("-", "_").replace("@", "_").casefold()


def _script(code: str) -> str | None:
    """The script that a language's code names, such as "latn"; None without one."""
    return next((part for part in code.split("_")[1:] if len(part) == 4 and part.isalpha()), None)
