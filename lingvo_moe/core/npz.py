"""Named arrays in one .npz file."""

import os
from pathlib import Path

import numpy as np


def save(path: Path, **arrays: np.ndarray | None) -> None:
    """Writes a file, which appears whole or not at all; what is None is left out."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **{n: a for n, a in arrays.items() if a is not None})
    os.replace(partial, path)


def load(path: Path) -> dict[str, np.ndarray]:
    """Reads what `save` wrote.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    try:
        with np.load(path) as file:
            return dict(file)
    except Exception as error:  # by the place of the damage: BadZipFile, zlib.error, TokenError, …
        raise ValueError(f"{type(error).__name__}: {error}") from error
