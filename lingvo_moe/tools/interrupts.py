"""Ctrl-C ends a tool with one line and exit status 130, even while its modules are imported."""

import os
import signal
import sys
import threading

STATUS = 128 + signal.SIGINT
_RETRY_SECONDS = 0.05


def install() -> None:
    """Sets the process's hooks for exceptions that nothing catches."""
    sys.excepthook = _end(sys.excepthook)
    sys.unraisablehook = _retry(sys.unraisablehook)


def _end(otherwise):
    def hook(kind, error, traceback):
        if not issubclass(kind, KeyboardInterrupt):
            return otherwise(kind, error, traceback)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends at once, in silence
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(STATUS)

    return hook


def _retry(otherwise):
    """Sends a Ctrl-C again that came in a callback of the garbage collector, such as JAX's.

    Python ignores errors there, and the tool would go on.
    """

    def hook(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return otherwise(unraisable)
        threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()

    return hook
