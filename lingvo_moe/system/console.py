"""Behaviour of programs in a terminal: one line for errors and Ctrl-C, no output of libraries.

Exported models contain a copy of this file, so it imports only the standard library.
"""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator

_INTERRUPTED, _BROKEN_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE
_RETRY_SECONDS = 0.05


def install(errors: tuple[type[Exception], ...] = ()) -> None:
    """Installs a handler for uncaught exceptions, also during imports; of those in `errors` only
    the text is printed, and the exit status is 1. It is 130 after Ctrl-C, and 141 if the reader of
    the output has closed the pipe."""
    _open_closed_streams()
    sys.excepthook = _end(sys.excepthook, errors)
    sys.unraisablehook = _retry(sys.unraisablehook)


def _open_closed_streams():
    """Makes standard streams usable that the caller has closed, as by `2>&-`.

    Without this another file would get the number of the stream, and be written to.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - until the process ends
    sys.stdout = sys.stdout or _Closed()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


class _Closed(io.TextIOBase):
    """Standard output that is closed: results are not lost in silence."""

    def write(self, text):
        raise OSError("Standard output is closed, and the result is lost; redirect it to a file.")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discards standard error while the block runs, also the logs of C++ libraries."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def drop_output() -> None:
    """Flushes standard output; if that fails, discards it, so that Python's exit does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(otherwise, errors):
    def hook(kind, error, traceback):
        if issubclass(kind, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends at once, in silence
            print("interrupted", file=sys.stderr, flush=True)
            drop_output()
            os._exit(_INTERRUPTED)  # while it compiles, JAX may crash in a normal exit
        if issubclass(kind, BrokenPipeError):
            line, status = None, _BROKEN_PIPE
        elif issubclass(kind, errors):
            line, status = f"error: {error}", 1
        else:
            return otherwise(kind, error, traceback)
        if line:
            print(line, file=sys.stderr, flush=True)
        drop_output()
        sys.exit(status)

    return hook


def _retry(otherwise):
    """Sends a Ctrl-C again if it arrived in a callback of the garbage collector, such as JAX's.

    Python ignores exceptions in such callbacks, and the program would continue.
    """

    def hook(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return otherwise(unraisable)
        threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()

    return hook
