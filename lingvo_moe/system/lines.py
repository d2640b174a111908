"""Lines of text: one reader for corpora, files to translate and standard input.

A line ends with "\\n" or "\\r\\n" and with nothing else: Unicode's other line ends (U+2028, U+0085,
form feed, …) and a lone "\\r" occur inside sentences, and splitting there would break the alignment
of parallel files. A byte order mark at the beginning of a file is not part of its text.

Exported models contain a copy of this file, so it imports only the standard library.
"""

import codecs
import collections
import contextlib
import gzip
import importlib
import io
import itertools
import re
import select
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

COMPRESSED = (".gz", ".zst")  # endings of files that `read_lines` decompresses
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")  # Unicode's separators, control and format characters
# A regular expression for the line ends of Unicode, and for NUL, which `read_lines` refuses.
LINE_ENDS = "[\0\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029]"


_MOMENT = 0.05  # seconds


def is_blank(text: str) -> bool:
    """Whether a line is empty or has only space, control and format characters.

    These include U+3000 and U+00A0 (spaces), U+200B (zero width) and U+FEFF (byte order mark).
    """
    return all(unicodedata.category(character) in INVISIBLE for character in text)


def check_utf8(text: str, name: str) -> None:
    """Raises ValueError: text, called `name`, cannot be encoded; half a surrogate pair, such as
    "\\ud800"."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is not valid Unicode: character {error.start + 1} is half a surrogate pair."
        ) from error


def one_line(text: str) -> str:
    """The text with a space in place of each line end, also Unicode's, and of each NUL.

    A model may produce such characters; its translation must be one line for every program.
    """
    return re.sub(LINE_ENDS, " ", text)


def first_of(texts: Sequence[str], most: int = 5) -> str:
    """The first texts of a list for a message, with "…" if there are more."""
    return ", ".join([*texts[:most], *(["…"] if len(texts) > most else [])])


def cut_warning(left_out: Mapping[int, int]) -> str:
    """A warning about sentences that are longer than a model can read: number of the line, from 1
    -> number of tokens at its end that are not read."""
    lines = [f"line {n} ({count:,} tokens left out)" for n, count in sorted(left_out.items())]
    return (
        f"warning: sentences too long for the model are cut, {len(lines)} in all: "
        f"{first_of(lines, 10)}. Split them into shorter ones."
    )


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without line ends; ".gz" and ".zst" files are decompressed.

    Raises ValueError: not UTF-8, a NUL character, or a damaged file; the message has the line;
    OSError: the file cannot be read; ImportError: the file is ".zst", and the package that reads
    zstd is not installed.
    """
    with open_bytes(path) as file:
        yield from decode_lines(file, str(path))


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading bytes; ".gz" and ".zst" files are decompressed. Raises ValueError:
    the block reads a compressed file that is damaged; OSError, ImportError: as `read_lines`."""
    if path.suffix == ".gz" and path.is_file() and not path.stat().st_size:
        raise ValueError(f"{path} is not a whole gzip file (it has no bytes); fetch it again.")
    damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
    opener: Any = {".gz": gzip.open}.get(path.suffix, open)
    if path.suffix == ".zst":
        opener, error_type = _zstd()
        damage += (error_type,)
    try:
        with opener(path, "rb") as file:
            yield file
    except damage as error:
        kind = "zstd" if path.suffix == ".zst" else "gzip"
        raise ValueError(f"{path} is not a whole {kind} file ({error}); fetch it again.") from error


def _zstd() -> tuple[Any, type[Exception]]:
    """`open` and the error type for zstd, from Python 3.14 or from the package backports.zstd."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            return module.open, module.ZstdError
    raise ImportError(
        "Reading .zst needs backports.zstd: pip install backports.zstd, or unpack the file."
    )


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Text of lines of bytes with their line ends; `name` is that of the source in errors. Raises
    ValueError: as `read_lines`."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if line.startswith(_UTF_16):
                raise ValueError(f"{name} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8.")
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). Convert "
                f"the text, for example with iconv, or remove the line (on both sides of a corpus)."
            ) from error
        if "\0" in text:
            raise ValueError(
                f"{name}, line {number}: a NUL character. The text may be UTF-16 or UTF-32: "
                f"convert it to UTF-8 with iconv, or remove the character."
            )
        yield text.removesuffix("\r\n").removesuffix("\n")


class ArrivingLines(Iterator[str]):
    """The lines of a stream, which know whether the next one has arrived."""

    def __init__(self, file: Any, name: str):
        """Reads nothing yet; name is that of `decode_lines`."""
        self._file, self._rest = file, bytearray()
        self._lines: collections.deque[bytes] = collections.deque()
        self._texts = decode_lines(iter(self._next, b""), name)

    def __next__(self) -> str:
        """The next line, also if it must be waited for."""
        return next(self._texts)

    def arrived(self) -> bool:
        """Whether the next line or the end is there, or comes within a moment."""
        while not self._lines:
            with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory is all there
                if not select.select([self._file], [], [], _MOMENT)[0]:
                    return False
            self._read()
        return True

    def _next(self):
        while not self._lines:
            self._read()
        return self._lines.popleft()

    def _read(self):
        read = self._file.read1(1 << 16)
        self._rest += read
        if b"\n" in read:
            *lines, self._rest = self._rest.split(b"\n")
            self._lines += [bytes(line) + b"\n" for line in lines]
        if not read:
            self._lines += [bytes(self._rest), b""][not self._rest :]


def blocks(lines: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Lines in lists of at most so many; a list of ArrivingLines ends when no more arrive."""
    left = iter(lines)
    for line in left:
        block = [line]
        while len(block) < most and (not isinstance(left, ArrivingLines) or left.arrived()):
            more = list(itertools.islice(left, 1))
            if not more:
                break
            block += more
        yield block


def printable(text: str) -> str:
    """Text for one line of a terminal: line ends, escape sequences, marks of direction and other
    control or invisible characters are written as in Python, such as `\\x1b`."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
