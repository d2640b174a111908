"""Deferred SIGINT, SIGTERM and SIGHUP, so that training can save a checkpoint first."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from lingvo_moe.system.progress import report

# Some programs signal a process and then its group (GNU timeout), or a terminal and then its shell
# do: what arrives so soon after the first signal is the same wish.
_TOGETHER_SECONDS = 5.0


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], int | None]]:
    """Defers SIGINT, SIGTERM and SIGHUP: the first is recorded, a later one ends the process.

    A separate thread reports the signal on standard error at once, even while the main thread
    compiles. A signal more than five seconds after the first ends the process with exit code 128 +
    its number. SIGHUP is left alone where it is ignored, as after nohup. Outside the main thread,
    where Python cannot handle signals, this does nothing. Yields a function that returns the number
    of the first signal, or None.
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
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else []))
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
    SIGINT (Ctrl-C), 129 for SIGHUP.
    """

    def __init__(self, number: int):
        super().__init__(128 + number)


def _listen(reader):
    """Handles each signal, which the interpreter writes to the socket as a byte."""
    first = None
    while data := reader.recv(1):
        number, now = data[0], time.monotonic()
        if number not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            continue
        name = signal.Signals(number).name
        if first is None:
            first = now
            report(
                f"{name}: saving after the current step or evaluation, then ending. Another signal "
                f"after {_TOGETHER_SECONDS:g} s ends at once, without saving."
            )
        elif now - first > _TOGETHER_SECONDS:
            report(f"{name} again: ending now, without saving.")
            os._exit(128 + number)
