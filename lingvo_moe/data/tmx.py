"""Reads TMX, the XML of translation memories (LISA OSCAR, TMX 1.4b), as a stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from lingvo_moe.core.lines import one_line, open_bytes

_BLOCK = 1 << 16
_STANDALONE = {"it", "ph", "ut"}  # markup such as a line break or a picture
_CODES = {"bpt", "ept", *_STANDALONE}  # elements of a segment whose content is markup


def read_tmx(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Reads the translation units that have both languages: (source, target), stripped.

    `xml:lang` may be in any case, with "-" or "_". If a unit has no text with the code
    "sr_Latn", the first one with a longer code, such as "sr_Latn_RS", is used. If there is none,
    the first one with a code of "sr" that names no other script is used. The same text is never
    both source and target. Line ends in a segment become spaces, and so does markup that stands
    alone (`<ph>`, `<it>`, `<ut>`) between two words.

    Raises:
        ValueError: the file is not well-formed XML, has entities that XML itself does not define,
            has no unit with both languages, or is compressed and damaged.
        OSError: the file cannot be read.
    """
    reader = _Reader(path, source, target)
    with open_bytes(path) as file:
        yield from reader.read(file)


class _Reader:
    def __init__(self, path: Path, source: str, target: str):
        self._path, self._languages = path, (_code(source), _code(target))
        self._found: list[tuple[str, str]] = []
        self._seen: dict[str, None] = {}  # languages, in order
        self._bare: dict[str, None] = {}  # those of a <tuv> without <seg>
        self._units = 0
        self._unit: dict[str, str] = {}
        self._language, self._codes = "", 0
        self._text: list[str] | None = None  # of a segment
        self._apart = False  # whether markup that stands alone ends the text so far

    def read(self, file: BinaryIO) -> Iterator[tuple[str, str]]:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.EntityDeclHandler = self._refuse
        parser.SkippedEntityHandler = self._refuse_unknown  # expat leaves it out of the text
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add
        count = 0
        while True:
            block = file.read(_BLOCK)
            try:
                parser.Parse(block, not block)
            except (expat.ExpatError, LookupError) as error:  # LookupError: unknown encoding
                raise ValueError(f"{self._path} is not well-formed XML ({error}).") from error
            yield from self._found
            count += len(self._found)
            self._found.clear()
            if not block:
                break
        if self._units and not count:
            raise ValueError(
                f"{self._path} has no unit with both {' and '.join(self._languages)}; it "
                f"has {', '.join(list(self._seen)[:20])}. {self._cure()}"
            )

    def _cure(self):
        if bare := ", ".join(self._bare):
            return f"There is <tuv> of {bare} without <seg>; put each text into a <seg>."
        return "Name the file after two of these."

    def _refuse(self, name, *declaration):
        raise ValueError(
            f"{self._path} declares the XML entity {name!r:.60}, which is not allowed. Replace "
            f"the entity by its text."
        )

    def _refuse_unknown(self, name, is_parameter):
        if not is_parameter:
            raise ValueError(
                f"{self._path} has the XML entity &{name:.60};, which it does not define. Replace "
                f"the entity by its text."
            )

    def _start(self, name, attributes):
        if name == "tu":
            self._unit = {}
            self._units += 1
        elif name == "tuv":
            self._language = _code(attributes.get("xml:lang") or attributes.get("lang") or "")
            self._seen.setdefault(self._language)
        elif name == "seg":
            self._text, self._codes, self._apart = [], 0, False
        elif name in _CODES:
            self._codes += 1

    def _end(self, name):
        if name == "seg" and self._text is not None:
            self._unit.setdefault(self._language, one_line("".join(self._text)).strip())
            self._text = None
        elif name in _CODES:
            self._codes -= 1
            self._apart |= name in _STANDALONE
        elif name == "tuv" and self._language not in self._unit:
            self._bare.setdefault(self._language)
        elif name == "tu":
            first, second = self._languages
            source, target = self._held(first, but=second), self._held(second, but=first)
            if source and target and source != target:
                self._found.append((self._unit[source], self._unit[target]))

    def _add(self, text):
        if self._text is not None and not self._codes:
            between_words = self._text and self._text[-1][-1].isalnum() and text[0].isalnum()
            self._text.append(" " * bool(self._apart and between_words) + text)
            self._apart = False

    def _held(self, language: str, but: str) -> str | None:
        """The language of the current unit that serves as a language; None if there is none."""
        if language in self._unit:
            return language
        main, *parts = language.split("_")
        codes = [c for c in self._unit if c.partition("_")[0] == main and c != but]
        longer = [c for c in codes if {*parts} <= {*c.split("_")}]
        alike = [
            c for c in codes if not _script(language) or _script(c) in (None, _script(language))
        ]
        return next(iter([*longer, *alike]), None)


def _code(language: str) -> str:
    return language.replace("-", "_").replace("@", "_").casefold()


def _script(code: str) -> str | None:
    """The script that a language's code names, such as "latn"; None without one."""
    return next((part for part in code.split("_")[1:] if len(part) == 4 and part.isalpha()), None)
