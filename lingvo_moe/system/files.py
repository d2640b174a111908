"""Writing files and directories: they appear complete; only files made here are replaced.

Two rules for everything that writes to disk:
1. Readers see only complete files: a file is written under another name, synced, and renamed.
2. A tool deletes only what it can prove it made. A directory made here holds `MANIFEST`, a list of
   its files with their sizes, written last. Any other file in it, and any file of another size or a
   later date, belongs to the user.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from lingvo_moe.system import lock
from lingvo_moe.system.lines import first_of

MANIFEST = ".lingvo_moe.json"
REPLACE = "pass --overwrite (in Python overwrite=True)"  # the cure in errors
_MOST_LINKS = 40  # symbolic links to follow, as in Linux
_ADDED = 25  # bytes by which the names of unfinished files are longer


def write_whole(path: Path, content: bytes | str | Iterable[str | bytes]) -> None:
    """Writes a file that appears complete or not at all, and survives a power failure.

    An existing file is replaced; for a symbolic link, the file it points to. A device, a pipe or an
    open file, such as /dev/stdout, is written to directly. Text, which may come in parts, becomes
    UTF-8. Raises OSError: it cannot be written; an existing file is unchanged.
    """
    texts = [content] if isinstance(content, bytes | str) else content
    parts = (text.encode("utf-8") if isinstance(text, str) else text for text in texts)
    if is_stream(path):
        descriptor = _descriptor(path)
        with path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as out:
            for part in parts:
                out.write(part)
                out.flush()
        return
    with new_file(path.resolve()) as partial, partial.open("wb") as file:
        file.writelines(parts)


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe, or stands for an open file of this process.

    /dev/stdout stands for an open file. What is written comes after what is in it.
    """
    return (path.exists() and not path.is_file()) or _descriptor(path) is not None


def _descriptor(path: Path) -> int | None:
    """The number of the open file that a path such as /dev/stdout or /dev/fd/3 stands for."""
    for _ in range(_MOST_LINKS):
        if os.path.realpath(path.parent) == f"/proc/{os.getpid()}/fd" and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Makes a file that appears at `path` when the block ends without an error. Yields the
    temporary path to write to; a killed run leaves this file behind (`remove_partials`). Raises
    OSError."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{threading.get_native_id()}")
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # the error of a full disk names no file
        raise
    sync(path.parent)


def remove_partials(path: Path) -> None:
    """Removes the temporary files of `new_file` that killed runs have left, if no other process
    writes the file."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.partial-*"):
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def sync(path: Path) -> None:
    """Makes a file, or the names in a directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Makes the contents of a directory survive a power failure; its name needs `sync` of its
    parent."""
    for below in path.rglob("*"):
        if not below.is_symlink():
            sync(below)
    sync(path)


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises ValueError: the file is missing, is not UTF-8 or JSON,
    or holds something other than an object; the message names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def check_file_name(name: str, what: str, example: str) -> None:
    """Raises ValueError: a file cannot have this name, because it has a slash or a control
    character, begins with a dot, or is too long. The error says what has the name, and an example
    of a good one."""
    bad = any(unicodedata.category(c) in ("Cc", "Cs") or c == "/" for c in name)
    if bad or not name or name[0] == "." or len(name.encode()) > 200:
        raise ValueError(
            f"{name!r:.60} cannot name {what}: files are named after it. Use at most 200 bytes, no "
            f"slash or control character, and no dot in front, such as {example}."
        )


def check_local(name: str, path: str) -> None:
    """Checks that a path is not an address such as gs://bucket/x, which would be a directory
    "gs:". Raises ValueError: it is one."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise ValueError(
            f"{name}={path} is not a local path. Files are renamed, locked and synced, which "
            f"buckets do not have; use a local or network disk, and copy finished results."
        )


def check_output(path: Path, maker: str, overwrite: bool = False) -> None:
    """Checks, before any work, that `new_directory` can make a directory of results of the tool
    `maker`, or replace one. Raises ValueError: the path holds files that `maker` did not make, or
    that may not be replaced; OSError: no directory can be made there."""
    check_length(path)
    path = _without_link(path)
    if not path.exists() and (_beside(path, "replaced") / MANIFEST).is_file():
        # After a crash between two renames, unless another process is there now.
        with contextlib.suppress(lock.HeldError), lock.hold(path.parent, f".{path.name}.lock"):
            if not path.exists():
                os.rename(_beside(path, "replaced"), path)
    if path.exists():
        if not path.is_dir():
            raise ValueError(f"{path} is a file; give a directory that does not exist yet.")
        if os.path.ismount(path):
            raise ValueError(f"{path} is a mount and cannot be replaced; give a directory in it.")
        if any(path.iterdir()):
            _check_ours(path, maker, overwrite)
    _check_writable(path.absolute().parent)  # there it is made, and then renamed


def check_file(path: Path, *sources: Path) -> None:
    """Checks, before any work, that `write_whole` can write a file. Raises OSError: it is a
    directory, or no file can be made there; ValueError: it is one of the sources, perhaps through a
    link."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give the name of a file in it.")
    if _descriptor(path) is not None:
        return
    check_length(path)
    if not path.resolve().parent.is_dir():
        why = "is not a directory" if path.parent.exists() else "does not exist"
        raise FileNotFoundError(f"{path} cannot be made: {path.parent} {why}.")
    writable = path if path.exists() and not path.is_file() else path.resolve().parent
    if not os.access(writable, os.W_OK):
        raise PermissionError(f"{path} cannot be made: {writable} is not writable.")
    for source in sources:
        if path.is_file() and source.exists() and path.samefile(source):
            raise ValueError(
                f"The output {path} is the same file as the input {source}; give another one."
            )


def check_length(path: Path) -> None:
    """Raises OSError if a file of this name could not be written: it is too long."""
    there = next(parent for parent in path.absolute().parents if parent.is_dir())
    longest = os.pathconf(there, "PC_NAME_MAX") - _ADDED
    if (size := len(os.fsencode(path.name))) > longest:
        raise OSError(f"{path} has a name of {size} bytes; give one of at most {longest}.")


@contextlib.contextmanager
def new_directory(path: Path, maker: str, overwrite: bool = False) -> Iterator[Path]:
    """Makes a directory of results that appears at `path` when the block ends without an error.

    While the block runs, the directory has another name beside `path`, which is yielded, and no
    other process makes it. A killed run leaves it behind; the next run for the same path removes
    it. Raises as `check_output`, which is called first; HeldError: another process makes it.
    """
    check_output(path, maker, overwrite)
    path = _without_link(path)
    partial, old = _beside(path, "partial"), _beside(path, "replaced")
    with lock.hold(path.parent, f".{path.name}.lock"):
        _remove(partial)
        partial.mkdir()
        (partial / MANIFEST).touch()
        try:
            yield partial
            sync_tree(partial)
            check_output(path, maker, overwrite)  # the block may have taken hours
            write_whole(partial / MANIFEST, json.dumps({"maker": maker, "files": _sizes(partial)}))
            _remove(old)
            if (path / MANIFEST).exists():  # else it is an empty directory
                os.rename(path, old)
            os.rename(partial, path)
            sync(path.parent)
            _remove(old)
        except BaseException:
            _remove(partial)
            raise


def _without_link(path):
    """Where a link points: results appear there, and the link stays."""
    return path.resolve() if path.is_symlink() else path


def _beside(path, kind):
    return path.with_name(f".{path.name}.{kind}")


def _remove(path):
    """Removes a directory that was made here, if it is there; its proof, the manifest, last."""
    if (path / MANIFEST).is_file():
        for one in path.iterdir():
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            elif one.name != MANIFEST:
                one.unlink()
        shutil.rmtree(path)
    elif path.is_dir() and not any(path.iterdir()):  # a kill left it without its manifest
        path.rmdir()


def _check_ours(path, maker, overwrite):
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} is not empty and was not made by {maker}; give another output.")
    manifest = read_json(path / MANIFEST)
    if manifest.get("maker") != maker:
        raise ValueError(
            f"{path} was made by {manifest.get('maker')}, not by {maker}. Give another output."
        )
    if not overwrite:
        raise ValueError(f"{path} is not empty; {REPLACE} or give another output.")
    ours = manifest.get("files")
    made = (path / MANIFEST).stat().st_mtime_ns
    changed = [
        name
        for name, size in _sizes(path).items()
        if not isinstance(ours, dict)
        or ours.get(name) != size
        or (path / name).lstat().st_mtime_ns > made
    ]
    if changed:
        raise ValueError(
            f"{path} holds files that {maker} did not make or that have changed since: "
            f"{first_of(changed)}. Move them away."
        )


def _check_writable(path):
    there = path
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"{path} cannot be made: {there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be made: {there} is not writable.")


def _sizes(directory):
    """Path of each file or link below a directory, without its manifest -> bytes."""
    files = (p for p in sorted(directory.rglob("*")) if p.is_symlink() or not p.is_dir())
    return {
        str(p.relative_to(directory)): p.lstat().st_size for p in files if p != directory / MANIFEST
    }
