"""Processes that begin together and end together: if one fails, all end, with its error.

Every process connects to process 0, which checks that their numbers fit. These connections stay: a
process that fails sends its error over them, and if a process is killed, the kernel closes its
connection. A thread listens at each, so a process ends even while it waits in a collective.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

from lingvo_moe.training.signals import Stopped

_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT  # exit codes
HELLO_SECONDS = 5.0  # other programs may connect, and send nothing
_KEEP_ALIVE_SECONDS = 60
_KEEP_IDLE = getattr(socket, "TCP_KEEPIDLE", 0x10)  # 0x10 is macOS's TCP_KEEPALIVE
_FAREWELL_SECONDS = 3.0  # limit for sending a failure to the others, which takes milliseconds
_RETRY_SECONDS = 0.2
_LINE_BYTES = 100_000  # more than any error has
_SHOWN = 8  # missing processes in an error
_CURE = (
    "Start all processes with the same --coordinator and --process_count, each with its own "
    "--process_index."
)
_SYMPTOM_SECONDS = 0.5  # time for another process's error to arrive, if it caused this one


class Member:
    """Another process, at the other end of a connection.

    Attributes:
        hello: what it said of itself: "index", "count", "pid" and "host".
    """

    def __init__(self, connection: socket.socket):
        self.connection, self.hello = connection, dict[str, object]()
        # Firewalls drop connections without traffic.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, _KEEP_ALIVE_SECONDS)
        self._lines = connection.makefile("r", encoding="utf-8")
        self.done, self.gone = threading.Event(), threading.Event()

    @property
    def name(self) -> str:
        """Its number, process id and host."""
        return _name(self.hello)

    def close(self) -> None:
        """Closes the connection."""
        self._lines.close()
        self.connection.close()

    def send(self, message: dict) -> None:
        """Sends a message; errors are ignored if the other process has ended."""
        with contextlib.suppress(OSError):
            self.connection.sendall((json.dumps(message) + "\n").encode())

    def receive(self, seconds: float | None = None) -> dict | None:
        """Waits for a message of one line; None if none comes in time, or something else."""
        self.connection.settimeout(seconds)
        try:
            message = json.loads(self._lines.readline(_LINE_BYTES))
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def has_ended(self) -> bool:
        """Whether the other end has closed its connection."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


def listen(port: int, backlog: int) -> socket.socket:
    """Listens at all addresses of this host, of IPv4 and, if there is one, of IPv6.

    Args:
        port: 0 for any that is free.
        backlog: connections that may wait to be accepted.

    Raises:
        OSError: the port cannot be used.
    """
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=backlog)
    except OSError as taken:
        reason = os.strerror(taken.errno) if taken.errno else taken
        raise OSError(
            f"Port {port} of this host cannot be used ({reason}); start all processes with another "
            f"port in --coordinator."
        ) from taken


def gather(server: socket.socket, count: int, seconds: float) -> list[Member]:
    """In process 0: waits until all others have called `join`; ends to listen.

    JAX finds wrong flags late: it waits for minutes, or aborts with a stack trace.

    Args:
        server: see `listen`.
        count: the number of processes.
        seconds: the limit for waiting.

    Raises:
        OSError: not all processes connected in time; two have the same index, or another count. All
            processes raise it.
    """
    deadline, mine = time.monotonic() + seconds, _identity(0, count)
    members: list[Member] = []
    error = ""
    with server:
        # One that has ended may be started again.
        while len(members := [m for m in members if not m.has_ended()]) < count - 1 and not error:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                member = Member(server.accept()[0])
            except TimeoutError:
                here = {member.hello["index"] for member in members}
                missing = [str(other) for other in range(1, count) if other not in here]
                more = ", …" if len(missing) > _SHOWN else ""
                error = _late(seconds, f"missing: {', '.join(missing[:_SHOWN])}{more}")
                break
            member.hello = member.receive(HELLO_SECONDS) or {}
            if not member.hello.keys() >= mine.keys():
                member.close()  # not one of our processes
                continue
            members = [m for m in members if not m.has_ended()]
            error = _conflict(member.hello, [mine, *(m.hello for m in members)])
            members.append(member)
    for member in members:
        member.connection.settimeout(None)
        member.send(mine | {"error": error})
    if error:
        raise OSError(error)
    return members


def join(address: tuple[str, int], index: int, count: int, seconds: float) -> list[Member]:
    """In another process: connects to process 0, and waits until it has `gather`ed all.

    Args:
        address: host and port of process 0.
        index: the number of this process.
        count, seconds: as for `gather`.

    Returns:
        Process 0 alone.

    Raises:
        OSError: as `gather`.
    """
    deadline = time.monotonic() + seconds
    while True:  # process 0 may not have started yet
        try:
            left = max(0.01, deadline - time.monotonic())
            member = Member(socket.create_connection(address, left))
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                reason = f"process 0: {error.strerror or error}"
                raise OSError(_late(seconds, reason)) from error
        time.sleep(_RETRY_SECONDS)
    member.send(_identity(index, count))
    answer = member.receive(max(0.01, deadline + HELLO_SECONDS - time.monotonic()))
    if answer is None or "error" not in answer:
        raise OSError(
            f"{address[0]}:{address[1]} gives process {index} no answer. Process 0 has ended, or "
            f"all processes have connected already, or another program uses the port. {_CURE}"
        )
    if answer["error"]:
        raise OSError(answer["error"])
    member.hello = answer
    member.connection.settimeout(None)
    return [member]


def _late(seconds, reason):
    return f"Not all processes connected within {seconds:g} s ({reason}). {_CURE}"


def _conflict(hello, others) -> str:
    """The error if a process contradicts others, process 0 first; "" if it does not."""
    for other in others:
        if hello["count"] != other["count"]:
            return (
                f"--process_count={hello['count']} in process {hello['index']}, and "
                f"{other['count']} in process {other['index']}; give all the same --process_count."
            )
        if hello["index"] == other["index"]:
            both = " and ".join(f"pid {one['pid']} on {one['host']}" for one in (other, hello))
            return f"Two processes have --process_index={hello['index']}: {both}. {_CURE}"
    return ""


def _identity(index, count):
    return {"index": index, "count": count, "pid": os.getpid(), "host": socket.gethostname()}


def _name(hello):
    return f"process {hello['index']} (pid {hello['pid']} on {hello['host']})"


@contextlib.contextmanager
def end_together(index: int, members: list[Member]) -> Iterator[None]:
    """Ends the processes in this block together; at the end of the block they wait for each other.

    If one of them raises or dies in the block, the others print its error as "error: …" and end at
    once with exit code 1. The process that raised continues to raise; it ends without waiting, with
    exit code 1 or, after Ctrl-C, 130. `Stopped` is raised by all, so it is no failure.

    Args:
        index: the number of this process; all processes enter the block.
        members: what `gather` or `join` returned.
    """
    watch = _Watch(members)
    stopped = None
    try:
        try:
            yield
        except Stopped as signal_after_a_step:
            stopped = signal_after_a_step
        watch.wait_for_all(first=index == 0)
    except BaseException as error:
        time.sleep(_SYMPTOM_SECONDS)
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        watch.tell(f"{_name(_identity(index, 0))}: {cause}")
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        atexit.register(_leave, status)  # before JAX's own exit, which waits for the others
        raise
    finally:
        watch.close()
    if stopped:
        raise stopped


class _Watch:
    """Listens to the other processes and ends this one if one of them fails."""

    def __init__(self, members: list[Member]):
        self._members = members
        self._ending = threading.Lock()  # never released by the thread that ends this process
        for member in members:
            threading.Thread(target=self._listen, args=(member,), daemon=True).start()

    def wait_for_all(self, first: bool) -> None:
        """Waits until all processes are done: each reports to the first, which then tells all."""
        for act in (self._wait, self._send_done) if first else (self._send_done, self._wait):
            act()

    def tell(self, cause: str) -> None:
        """Sends the error of this process to the others, and waits until they have received it."""
        self._ending.acquire()
        for member in self._members:
            member.send({"failed": cause})
            with contextlib.suppress(OSError):
                member.connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for member in self._members:
            member.gone.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Closes the connections."""
        for member in self._members:
            member.connection.close()

    def _wait(self):
        for member in self._members:
            member.done.wait()

    def _send_done(self):
        for member in self._members:
            member.send({"done": True})

    def _listen(self, member):
        cause = f"{member.name} ended without an error message; see its own output"
        while (message := member.receive()) is not None:
            if "done" in message:
                member.done.set()
            cause = message.get("failed", cause)
        member.gone.set()
        if not member.done.is_set():
            self.tell(cause)
            print(f"error: {cause}", file=sys.stderr, flush=True)
            _leave(_FAILED)


def _leave(status):
    sys.stdout.flush()
    os._exit(status)
