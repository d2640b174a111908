"""Programs in a terminal: errors and Ctrl-C end in one line, and libraries do not greet.

Exported models come with a copy of this file; it needs the standard library alone.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

_INTERRUPTED, _BROKEN_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE
_RETRY_SECONDS = 0.05


def install(errors: tuple[type[Exception], ...] = ()) -> None:
    """Sets what happens to an exception that nothing catches, while modules are imported too.

    Ctrl-C gives exit status 130, a reader of our output that has gone 141 as in other programs.

    Args:
        errors: exceptions that are errors of the user's; their text is the line, the status 1.
    """
    sys.excepthook = _end(sys.excepthook, errors)
    sys.unraisablehook = _retry(sys.unraisablehook)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it nothing is written to standard error: C++ libraries log there, whatever we ask."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def drop_output() -> None:
    """Makes sure that Python, as it ends, does not fail to write what cannot be written."""
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
            os._exit(_INTERRUPTED)  # JAX may crash at an orderly end while it compiles
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
    """Sends a Ctrl-C again that came in a callback of the garbage collector, such as JAX's.

    Python ignores errors there, and the program would go on.
    """

    def hook(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return otherwise(unraisable)
        threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()

    return hook
