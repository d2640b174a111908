"""Reads pixels of pictures."""

import io

import numpy as np
from PIL import Image


def pixels(png: bytes) -> np.ndarray:
    """int [height, width, 3], red, green and blue of a PNG."""
    assert png.startswith(b"\x89PNG\r\n")
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def inked(png: bytes, color: str, tolerance: int = 40) -> np.ndarray:
    """bool [height, width], which pixels have about a colour such as "#1f5fa8"."""
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return np.abs(pixels(png) - wanted).max(axis=-1) <= tolerance


def ink(png: bytes, color: str, tolerance: int = 40) -> int:
    """How many they are."""
    return int(inked(png, color, tolerance).sum())
