"""Deferred SIGINT and SIGTERM, so that training can save a checkpoint first."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], int | None]]:
    """Defers SIGINT and SIGTERM: the first is recorded, the second ends the process.

    A separate thread reports the signal on standard error at once, even while the main thread
    compiles. The second signal ends the process with exit code 128 + its number. Outside the main
    thread, where Python cannot handle signals, this does nothing.

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


class Stopped(SystemExit):
    """A signal stopped the training, after the same step in all processes; the step is saved.

    Its code is the exit status that a shell reports for this signal: 143 for SIGTERM, 130 for
    SIGINT (Ctrl-C).
    """

    def __init__(self, number: int):
        super().__init__(_exit_status(number))


def _exit_status(number):
    return 128 + number


def _listen(reader):
    """Handles each signal, which the interpreter writes to the socket as a byte."""
    heard = 0
    while data := reader.recv(1):
        number = data[0]
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        heard += 1
        name = signal.Signals(number).name
        if heard > 1:
            print(f"{name} again: ending now, without saving.", file=sys.stderr, flush=True)
            os._exit(_exit_status(number))
        print(
            f"{name}: saving after the current step or evaluation, then ending. A second signal "
            f"ends at once, without saving.",
            file=sys.stderr,
            flush=True,
        )
