"""Locks on directories and shards, so that only one process at a time changes them."""

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

FILE = ".lock"


class HeldError(ValueError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(directory: Path, file: str = FILE, wait: bool = False) -> Iterator[bool]:
    """Keeps other processes from changing a directory while the block runs.

    The lock is a flock on a file in the directory, which is made if needed, and removed if it stays
    empty; the file names the holder. The kernel releases it when the process ends, also after a
    kill; a remaining file has no effect. On network file systems such as NFS the lock works between
    hosts. On a file system without flock there is a warning, no lock, and False is yielded. `wait`
    waits until no other process holds it.

    Raises HeldError: another process holds it; the message names the process, its host and the
    time; OSError: the directory cannot be made or written to.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    path = directory / file
    descriptor, locked = _acquire(path, wait)
    try:
        yield locked
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # while the lock is still held
        os.close(descriptor)
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()


def _acquire(path, wait):
    """Opens the file, locks it and writes who holds it; its descriptor, whether it is locked."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Without O_NOFOLLOW a link to a directory that does not exist would be tried for ever.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            continue  # another process has removed the directory that it had made
        try:
            locked = _lock(descriptor, path.parent, wait)
            if _is_at(descriptor, path):
                since = time.strftime("%Y-%m-%d %H:%M:%S %z")
                holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(holder).encode())
                return descriptor, locked
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(path)  # the error of a full disk names no file
            raise
        os.close(descriptor)  # its holder has removed it since it was opened


def _lock(descriptor, directory, wait):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    except BlockingIOError as error:
        raise HeldError(
            f"{directory} is in use by {_holder(descriptor)}; wait, or give another directory."
        ) from error
    except OSError as error:
        logging.warning(
            "%s is on a file system without locks (%s): make sure that no other process uses it.",
            directory,
            error.strerror,
        )
        return False


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor):
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
