"""Reads directories."""

from pathlib import Path


def contents(directory: Path) -> dict[Path, bytes]:
    """Path of each file below a directory -> its bytes."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
