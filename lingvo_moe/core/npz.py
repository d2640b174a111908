"""Named arrays in one .npz file."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lingvo_moe.core.files import write_whole

T = TypeVar("T")


def save(path: Path, **arrays: np.ndarray | None) -> None:
    """Writes a file, which appears complete or not at all; arrays that are None are left out."""
    content = io.BytesIO()
    given: dict[str, Any] = {name: a for name, a in arrays.items() if a is not None}
    np.savez_compressed(content, **given)
    write_whole(path, content.getvalue())


def load(path: Path, make: Callable[[dict[str, np.ndarray]], T], what: str, cure: str) -> T:
    """Reads what `save` wrote.

    Args:
        path: the file.
        make: arrays -> result; raises LookupError, TypeError or ValueError if they do not fit.
        what: the contents of such a file, for errors, such as "trace of expert loads".
        cure: a sentence for errors: how such a file is made.

    Raises:
        ValueError: the file does not exist or cannot be read; the message names it.
    """
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except Exception as error:  # depends on the damage: BadZipFile, zlib.error, TokenError, …
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} holds no {what} ({reason}). {cure}") from error
    try:
        return make(arrays)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no {what} ({error}). {cure}") from error
