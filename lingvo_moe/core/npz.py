"""Named arrays in one .npz file."""

import io
from pathlib import Path

import numpy as np

from lingvo_moe.core.files import write_whole


def save(path: Path, **arrays: np.ndarray | None) -> None:
    """Writes a file, which appears whole or not at all; what is None is left out."""
    content = io.BytesIO()
    np.savez_compressed(content, **{n: a for n, a in arrays.items() if a is not None})
    write_whole(path, content.getvalue())


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
