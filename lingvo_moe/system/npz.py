"""Named arrays in one .npz file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lingvo_moe.system.files import new_file

T = TypeVar("T")


def save(path: Path, *, compress: bool = True, **arrays: np.ndarray | None) -> None:
    """Writes arrays by name, but for those that are None, to a file that appears complete or not at
    all. Compressing takes longer. Raises OSError: it cannot be written; an existing file is
    unchanged."""
    given: dict[str, Any] = {name: a for name, a in arrays.items() if a is not None}
    write = np.savez_compressed if compress else np.savez
    with new_file(path) as partial, partial.open("wb") as file:
        write(file, **given)


def load(
    path: Path,
    make: Callable[[dict[str, np.ndarray]], T],
    what: str,
    cure: str,
) -> T:
    """Reads what `save` wrote: make(arrays).

    `make` raises LookupError, TypeError or ValueError if they do not fit. `what` is what such a
    file holds, for errors, and `cure` a sentence on how it is made. Raises ValueError: the file
    does not exist or cannot be read; the message names it.
    """
    try:
        with np.load(path) as file:
            return make(dict(file))
    except Exception as error:  # depends on the damage: BadZipFile, zlib.error, TokenError, …
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} holds no {what} ({reason}). {cure}") from error
