"""Named arrays in one .npz file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lingvo_moe.system.files import new_file

T = TypeVar("T")


def save(path: Path, *, compress: bool = True, **arrays: np.ndarray | None) -> None:
    """Writes a file, which appears complete or not at all.

    Args:
        path: the file; an existing one is replaced.
        compress: whether to compress it, which takes longer.
        **arrays: by name; those that are None are left out.

    Raises OSError: it cannot be written; an existing file is unchanged.
    """
    given: dict[str, Any] = {name: a for name, a in arrays.items() if a is not None}
    write = np.savez_compressed if compress else np.savez
    with new_file(path) as partial, partial.open("wb") as file:
        write(file, **given)


def load(
    path: Path,
    make: Callable[[dict[str, np.ndarray]], T],
    what: str,
    cure: str,
    names: Sequence[str] | None = None,
) -> T:
    """Reads what `save` wrote.

    Args:
        path: the file.
        make: arrays -> result; raises LookupError, TypeError or ValueError if they do not fit.
        what: the contents of such a file, for errors, such as "trace of expert loads".
        cure: a sentence for errors: how such a file is made.
        names: the arrays to read; None for all.

    Raises ValueError: the file does not exist or cannot be read; the message names it.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in (file.files if names is None else names)}
    except FileNotFoundError as error:
        raise ValueError(f"{path} holds no {what} (there is no such file). {cure}") from error
    except Exception as error:  # depends on the damage: BadZipFile, zlib.error, TokenError, …
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} holds no {what} ({reason}). {cure}") from error
    try:
        return make(arrays)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no {what} ({error}). {cure}") from error
