"""Named arrays in one .npz file."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from lingvo_moe.core.files import write_whole

T = TypeVar("T")


def save(path: Path, **arrays: np.ndarray | None) -> None:
    """Writes a file, which appears whole or not at all; what is None is left out."""
    content = io.BytesIO()
    np.savez_compressed(content, **{n: a for n, a in arrays.items() if a is not None})
    write_whole(path, content.getvalue())


def load(path: Path, make: Callable[[dict[str, np.ndarray]], T], what: str, cure: str) -> T:
    """Reads what `save` wrote.

    Args:
        path: the file.
        make: makes of the arrays what is wanted; raises LookupError, TypeError or ValueError if
            they are not of that kind.
        what: what it holds, for errors, such as "trace of expert loads".
        cure: a sentence for errors: where such a file comes from.

    Raises:
        ValueError: there is none, or it cannot be read; the message names the file.
    """
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except Exception as error:  # by the place of the damage: BadZipFile, zlib.error, TokenError, …
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} holds no {what} ({reason}). {cure}") from error
    try:
        return make(arrays)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no {what} ({error}). {cure}") from error
