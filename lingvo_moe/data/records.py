"""Files of examples that are read by index: a record for each example, an index, a footer.

    record   lengths of both sides and of the first text, bytes per id, ids, UTF-8 texts
    index    for each record: the position of its end (8 bytes) and its CRC-32 (4 bytes)
    footer   position of the index, number of records, largest source and target id, b"LMRECS1\\n"

The checksum of a file is the SHA-256 of index and footer. The index has a CRC-32 of each record,
which is verified when the record is read. So opening takes no longer for a large file, and reading
needs the memory of one record.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

_MAGIC = b"LMRECS1\n"
_FOOTER = struct.Struct("<QQII8s")
_ENTRY = struct.Struct("<QI")
_HEAD = struct.Struct("<IIII")
_BLOCK = 1 << 20
_DTYPES: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Example(NamedTuple):
    """One sentence pair."""

    source: np.ndarray  # int32 ids: a language tag (see data.language_tags), the tokens, EOS
    target: np.ndarray  # int32 ids: the tokens, EOS; with tags on both sides, a tag first
    # source_text, target_text: the sentences; "" in train
    source_text: str = ""
    target_text: str = ""


def write_records(path: Path, examples: Iterable[Example]) -> int:
    """Writes a file of examples, one at a time; returns their number. Raises OSError: the file
    cannot be written."""
    index, largest = bytearray(), [0, 0]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for example in examples:
                record = _to_bytes(example, largest)
                file.write(record)
                index += _ENTRY.pack(file.tell(), zlib.crc32(record))
            start = file.tell()
            file.write(index)
            file.write(_FOOTER.pack(start, len(index) // _ENTRY.size, *largest, _MAGIC))
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error}).") from error
    return len(index) // _ENTRY.size


def _to_bytes(example: Example, largest: list[int]) -> bytes:
    """The record of an example; updates the largest ids of both sides."""
    ids = np.concatenate([example.source, example.target]).astype(np.int64, copy=False)
    for side in (0, 1):
        largest[side] = max(largest[side], int(np.max(example[side], initial=0)))
    width = 4 if ids.size and ids.max() >= 2**16 else 2
    text = example.source_text.encode()
    head = _HEAD.pack(len(example.source), len(example.target), len(text), width)
    return head + ids.astype(_DTYPES[width]).tobytes() + text + example.target_text.encode()


class Records:
    """An open file of examples. Any number of threads may read it.

    Attributes:
        path: the file.
        largest: the largest source id and the largest target id.
        version: changes when the file is changed.
    """

    def __init__(self, path: Path):
        """Opens a file. Raises OSError: it is missing, truncated, or not a file of records."""
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise self._damaged(error.strerror) from error
        stat = os.fstat(self._file.fileno())
        self.version = stat.st_size, stat.st_mtime_ns
        end = stat.st_size - _FOOTER.size
        if end < 0:
            raise self._damaged("it is too short")
        self._start, self._count, *largest, magic = _FOOTER.unpack(self._read(end, _FOOTER.size))
        if magic != _MAGIC or self._start + self._count * _ENTRY.size != end:
            raise self._damaged("it is truncated, or not a file of records")
        self.largest = tuple(largest)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, number: int) -> Example:
        """The example with this number, from 0. Raises IndexError: there is none; OSError: it is
        damaged."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        before = min(number, 1)  # the end of a record is the start of the next
        entry = self._start + (number - before) * _ENTRY.size
        entries = self._read(entry, (1 + before) * _ENTRY.size)
        end, checksum = _ENTRY.unpack_from(entries, before * _ENTRY.size)
        start = _ENTRY.unpack_from(entries)[0] if before else 0
        if not start <= end <= self._start:
            raise self._damaged(f"the index of record {number}")
        record = self._read(start, end - start)
        if zlib.crc32(record) != checksum:
            raise self._damaged(f"record {number}: its CRC-32 does not match")
        return _from_bytes(record)

    @property
    def checksum(self) -> str:
        """SHA-256 of index and footer, in hexadecimal."""
        digest, position = hashlib.sha256(), self._start
        while block := os.pread(self._file.fileno(), _BLOCK, position):
            digest.update(block)
            position += len(block)
        return digest.hexdigest()

    def _damaged(self, why: str | None) -> OSError:
        return OSError(f"Shard {self.path} is missing or damaged ({why}); prepare the data again.")

    def _read(self, start: int, size: int) -> bytes:
        data = os.pread(self._file.fileno(), size, start)
        if len(data) != size:
            raise self._damaged(f"it ends at byte {start + len(data)}")
        return data


def _from_bytes(record: bytes) -> Example:
    sources, targets, text, width = _HEAD.unpack_from(record)
    ids = np.frombuffer(record, _DTYPES[width], sources + targets, _HEAD.size).astype(np.int32)
    texts = record[_HEAD.size + width * len(ids) :]
    return Example(ids[:sources], ids[sources:], texts[:text].decode(), texts[text:].decode())
