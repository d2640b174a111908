"""SIGINT and SIGTERM that wait until work can be saved."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], int | None]]:
    """Within it the first SIGINT or SIGTERM is only remembered; a second ends the process at once.

    A line on standard error says so when the signal arrives, even while the main thread compiles: a
    thread of its own hears of signals. The second signal ends the process with exit code 128 + its
    number. Outside of the main thread, where signals cannot be handled, nothing changes.

    Yields:
        A function that returns the number of the first signal, or None.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    received: list[int] = []
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    listener = threading.Thread(target=_listen, args=(reader,), daemon=True)
    listener.start()
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        writer.close()
        listener.join()
        reader.close()


def exit_code(number: int) -> int:
    """By which a shell knows that a signal of that number ended a process."""
    return 128 + number


def _listen(reader):
    """Answers each signal, which the interpreter writes to the socket as a byte."""
    heard = 0
    while data := reader.recv(1):
        number = data[0]
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        heard += 1
        name = signal.Signals(number).name
        if heard > 1:
            print(f"{name} again: ends now, without saving.", file=sys.stderr, flush=True)
            os._exit(exit_code(number))
        print(
            f"{name}: ends after the step or evaluation in progress, and saves. A second signal "
            f"ends at once, without saving.",
            file=sys.stderr,
            flush=True,
        )
