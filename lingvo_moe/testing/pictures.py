"""Reads pixels of pictures."""

import io

import numpy as np
from PIL import Image


def pixels(png: bytes) -> np.ndarray:
    """int [height, width, 3], red, green and blue of a PNG."""
    assert png.startswith(b"\x89PNG\r\n")
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def ink(png: bytes, color: str, tolerance: int = 40) -> int:
    """The number of pixels whose colour is close to one such as "#1f5fa8"."""
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels(png) - wanted).max(axis=-1) <= tolerance).sum())
