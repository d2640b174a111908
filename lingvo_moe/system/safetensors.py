"""Named arrays in a .safetensors file (https://huggingface.co/docs/safetensors).

The format: eight bytes with the length of the header; a JSON header with type, shape and position
of each array; the bytes of the arrays. Reading a file runs no code.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(tf.bfloat16.as_numpy_dtype),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_CHECKSUM = "lingvo_moe_sha256"  # of the file, with zeros in its own place
_ZEROS = "0" * 64
_PART = 1 << 20  # bytes
_LONGEST_HEADER = 100_000_000  # the format's own limit


class Safetensors(NamedTuple):
    """The contents of a file."""

    arrays: Mapping[str, np.ndarray]  # by name; each is mapped into memory when it is looked up
    metadata: dict[str, str]  # texts by name, the checksum left out


class InParts(NamedTuple):
    """An array to be written that is never whole in memory."""

    # shape, dtype: of the array
    shape: tuple[int, ...]
    dtype: np.dtype
    # makes the parts, in order, which are joined along the first dimension
    parts: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


def save(
    path: Path, arrays: Mapping[str, np.ndarray | InParts], metadata: Mapping[str, str]
) -> None:
    """Writes arrays and texts by name, array by array, with a checksum that `load` verifies, in a
    directory of `system.files.new_directory`. Raises OSError: it cannot be written."""
    header: dict = {_METADATA: {**metadata, _CHECKSUM: _ZEROS}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)  # so that arrays are aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        digest = hashlib.sha256(text)
        for array in arrays.values():
            for part in array.parts() if isinstance(array, InParts) else (array,):
                data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)
        file.seek(8)
        file.write(text.replace(_ZEROS.encode(), digest.hexdigest().encode(), 1))


def load(path: Path) -> Safetensors:
    """Opens a file, made by this package or another program. Raises ValueError: it is damaged or of
    a form that is not known; the message names the file; OSError: it cannot be read."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"{path} is no safetensors file, or is cut short.")
        text = file.read(length)
        found = re.search(f'"{_CHECKSUM}": "([0-9a-f]{{64}})"'.encode(), text)
        if found:
            digest = hashlib.sha256(text.replace(found[1], _ZEROS.encode(), 1))
            while part := file.read(_PART):
                digest.update(part)
            if digest.hexdigest() != found[1].decode():
                raise ValueError(
                    f"{path} is no safetensors file, or is damaged: its checksum is another."
                )
    try:
        header = json.loads(text)
        metadata = header.pop(_METADATA, {})
        arrays = _Arrays({name: _open(path, 8 + length, size, e) for name, e in header.items()})
        if not isinstance(metadata, dict):
            raise TypeError(f"its metadata is {metadata!r:.60}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} is no safetensors file, or is damaged ({reason:.200})."
        ) from error
    return Safetensors(arrays, {k: v for k, v in metadata.items() if k != _CHECKSUM})


class _Arrays(Mapping[str, np.ndarray]):
    """The arrays of a file; none is kept, so memory is that of those in use."""

    def __init__(self, places: dict[str, Callable[[], np.ndarray]]):
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        return self._places[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _open(path: Path, first: int, size: int, entry: Any) -> Callable[[], np.ndarray]:
    """Maps an array into memory, once what the header says of it has been checked."""
    if isinstance(entry["dtype"], str) and entry["dtype"] not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise ValueError(f"tensors of {entry['dtype']:.20}; those that can be read are {known}")
    dtype, shape, (start, end) = (_DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"])
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError(f"shape {shape} from {start} to {end}")
    if end - start != math.prod(shape) * dtype.itemsize or first + end > size:
        raise ValueError(f"bytes {start} to {end} of {size - first} for {dtype} {shape}")

    def opened():
        if start == end:
            return np.zeros(shape, dtype)
        bytes_ = np.memmap(path, np.uint8, "r", first + start, end - start)
        return bytes_.view(dtype).reshape(shape)

    return opened
