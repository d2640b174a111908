"""Processes that begin together and end together: if one fails, all end, with its error.

`call_roll` checks the flags of all processes before JAX connects them. In `end_together` every
process connects to process 0. A process that fails sends its error over these connections. If
a process is killed, the kernel closes its connection. A thread listens at each connection, so a
process ends even while it waits in a collective.
"""

import atexit
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from lingvo_moe.core.child import environment
from lingvo_moe.training.signals import Stopped

_FAILED, _INTERRUPTED = 1, 128 + signal.SIGINT  # exit codes
_MEET_SECONDS = 300.0
HELLO_SECONDS = 5.0  # other programs may connect, and send nothing
_POLL_SECONDS = 0.5
_KEEP_ALIVE_SECONDS = 60
_KEEP_IDLE = getattr(socket, "TCP_KEEPIDLE", 0x10)  # 0x10 is macOS's TCP_KEEPALIVE
_FAREWELL_SECONDS = 3.0  # limit for sending a failure to the others, which takes milliseconds
_RETRY_SECONDS = 0.2
_LINE_BYTES = 1000
_SHOWN = 8  # missing processes in an error
_CURE = (
    "Start all processes with the same --coordinator and --process_count, each with its own "
    "--process_index."
)
_SYMPTOM_SECONDS = 0.5  # time for another process's error to arrive, if it caused this one


def call_roll(coordinator: str, index: int, count: int, seconds: float) -> None:
    """Waits until all processes have reported to process 0, which then frees its port.

    JAX finds wrong flags late: it waits for minutes, or aborts with a stack trace.

    Args:
        coordinator: HOST:PORT of process 0.
        index: the number of this process.
        count: the number of processes.
        seconds: the limit for waiting.

    Raises:
        OSError: the port cannot be used; not all processes reported in time; two have the same
            index, or another count. All processes raise it.
    """
    deadline = time.monotonic() + seconds
    mine = {**_identity(index), "count": count}
    host, _, port = coordinator.rpartition(":")

    def late(reason: str) -> str:
        return (
            f"Not all processes connected to {coordinator} within {seconds:g} s ({reason}). {_CURE}"
        )

    if index:
        error = _report((host.strip("[]"), int(port)), mine, deadline, late)
    else:
        error = _collect(int(port), mine, deadline, late)
    if error:
        raise OSError(error)


def _collect(port, mine, deadline, late) -> str:
    """Process 0: waits for the others and tells them the outcome, an error or ""."""
    try:
        server = listen(port, mine["count"])
    except OSError as taken:
        reason = os.strerror(taken.errno) if taken.errno else taken
        raise OSError(
            f"Port {port} of this host cannot be used ({reason}); start all processes with another "
            f"port in --coordinator."
        ) from taken
    reports: dict[_Member, dict] = {}
    error = ""
    with server:
        while len(reports := _alive(reports)) < mine["count"] - 1 and not error:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                member = _Member(server.accept()[0], "")
            except TimeoutError:
                here = {report["index"] for report in reports.values()}
                missing = [str(other) for other in range(1, mine["count"]) if other not in here]
                more = ", …" if len(missing) > _SHOWN else ""
                error = late(f"missing: {', '.join(missing[:_SHOWN])}{more}")
                break
            report = _read(member)
            if report is None or not report.keys() >= mine.keys():
                member.close()  # not one of our processes
                continue
            reports = _alive(reports)
            error = _conflict(report, [mine, *reports.values()])
            reports[member] = report
        for member in reports:
            member.connection.settimeout(HELLO_SECONDS)
            member.send({"error": error})
            with contextlib.suppress(OSError):
                member.connection.recv(1)  # when the other end closes, the port becomes free
            member.close()
    return error


def _alive(reports):
    """Those of processes that have not ended; one that has ended may be started again."""
    return {member: report for member, report in reports.items() if not _ended(member.connection)}


def _ended(connection) -> bool:
    """Whether the other end has closed its connection."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _conflict(report, others) -> str:
    """The error if a report contradicts those of others, process 0 first; "" if none does."""
    for other in others:
        if report["count"] != other["count"]:
            return (
                f"--process_count={report['count']} in process {report['index']}, and "
                f"{other['count']} in process {other['index']}; give all the same --process_count."
            )
        if report["index"] == other["index"]:
            both = " and ".join(f"pid {one['pid']} on {one['host']}" for one in (other, report))
            return f"Two processes have --process_index={report['index']}: {both}. {_CURE}"
    return ""


def _read(member) -> dict | None:
    """A message of one line; None if it is none."""
    member.connection.settimeout(HELLO_SECONDS)
    try:
        message = json.loads(member.lines.readline(_LINE_BYTES))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def _report(address, mine, deadline, late) -> str:
    """Another process: reports to process 0, and returns the outcome, an error or ""."""
    while True:  # process 0 may not have started yet
        try:
            left = max(0.01, deadline - time.monotonic())
            member = _Member(socket.create_connection(address, left), "")
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                return late(f"process 0: {error.strerror or error}")
        time.sleep(_RETRY_SECONDS)
    member.connection.settimeout(max(0.01, deadline + HELLO_SECONDS - time.monotonic()))
    member.send(mine)
    try:
        return json.loads(member.lines.readline(_LINE_BYTES))["error"]
    except (OSError, ValueError, LookupError, TypeError):
        return (
            f"{address[0]}:{address[1]} gives process {mine['index']} no answer. Process 0 has "
            f"ended, or all processes have reported already, or another program uses the port. "
            f"{_CURE}"
        )
    finally:
        member.close()


@contextlib.contextmanager
def end_together(
    index: int,
    count: int,
    host: str,
    exchange: Callable[[str | None], str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Ends the processes in this block together; at the end of the block they wait for each other.

    If one of them raises or dies in the block, the others print its error as "error: …" and end at
    once with exit code 1. The process that raised continues to raise; it ends without waiting, with
    exit code 1 or, after Ctrl-C, 130. `Stopped` is raised by all, so it is no failure.

    Args:
        index: the number of this process; all processes enter the block.
        count: the number of processes.
        host: name or address of process 0's host.
        exchange: takes a text from process 0, None from others; returns that text to all.
        check: called by process 0 while it waits for the others; raises OSError if one has ended.

    Raises:
        OSError: the processes cannot connect.
    """
    members = _accept(count, exchange, check) if index == 0 else [_connect(index, host, exchange)]
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
        watch.tell(f"{_name(_identity(index))}: {cause}")
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        atexit.register(_leave, status)  # before JAX's own exit, which waits for the others
        raise
    finally:
        watch.close()
    if stopped:
        raise stopped


@contextlib.contextmanager
def start_together(
    index: int, count: int, command: Callable[[int], Sequence[str]]
) -> Iterator[None]:
    """Process 0 starts the others on this host; all end together, see `end_together`.

    Args:
        index: the number of this process.
        count: the number of processes.
        command: process 1, 2, … -> what starts it. It enters this block too, and reads nothing else
            from its standard input.
    """

    started = []

    def exchange(address):
        if address is None:
            return sys.stdin.readline()
        for other in range(1, count):
            process = subprocess.Popen(
                command(other), stdin=subprocess.PIPE, text=True, env=environment()
            )
            print(address, file=process.stdin, flush=True)
            started.append(process)
        return address

    def check():
        for other, process in enumerate(started, start=1):
            if process.poll() is not None:
                raise OSError(
                    f"Process {other} ended at its start, with exit status {process.returncode}; "
                    f"its message is above."
                )

    if count == 1:
        yield
        return
    with end_together(index, count, "localhost", exchange, check):
        yield


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
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=backlog)


class _Member:
    """Another process, at the other end of a connection."""

    def __init__(self, connection: socket.socket, name: str):
        self.connection, self.name = connection, name
        # Firewalls drop connections without traffic.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, _KEEP_ALIVE_SECONDS)
        self.lines = connection.makefile("r", encoding="utf-8")
        self.done, self.gone = threading.Event(), threading.Event()

    def close(self) -> None:
        """Closes the connection."""
        self.lines.close()
        self.connection.close()

    def send(self, message: dict) -> None:
        """Sends a message; errors are ignored if the other process has ended."""
        with contextlib.suppress(OSError):
            self.connection.sendall((json.dumps(message) + "\n").encode())


class _Watch:
    """Listens to the other processes and ends this one if one of them fails."""

    def __init__(self, members: list[_Member]):
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
        with contextlib.suppress(OSError, ValueError):
            for line in member.lines:
                message = json.loads(line)
                if "done" in message:
                    member.done.set()
                cause = message.get("failed", cause)
        member.gone.set()
        if not member.done.is_set():
            self.tell(cause)
            print(f"error: {cause}", file=sys.stderr, flush=True)
            _leave(_FAILED)


def _accept(count, exchange, check) -> list[_Member]:
    """Process 0: waits for the connections of all others, which must send the token."""
    members: list[_Member] = []
    with listen(0, count) as server:
        token = secrets.token_hex()
        exchange(f"{server.getsockname()[1]} {token}")
        deadline = time.monotonic() + _MEET_SECONDS
        while len(members) < count - 1:
            server.settimeout(_POLL_SECONDS)
            try:
                connection, _ = server.accept()
            except TimeoutError as error:
                check()
                if time.monotonic() < deadline:
                    continue
                raise OSError(
                    f"Only {len(members)} of {count - 1} other processes connected to process 0 "
                    f"within {_MEET_SECONDS:.0f} s."
                ) from error
            if member := _handshake(connection, token):
                members.append(member)
    return members


def _handshake(connection, token):
    """The process that has just connected; None if it has no valid token."""
    connection.settimeout(HELLO_SECONDS)
    member = _Member(connection, "")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        hello = json.loads(member.lines.readline(_LINE_BYTES))
        if secrets.compare_digest(hello["token"], token):
            member.name = _name(hello)
            member.send(_identity(0))
            connection.settimeout(None)
            return member
    connection.close()
    return None


def _connect(index, host, exchange) -> _Member:
    """Another process: process 0."""
    port, token = exchange(None).split()
    try:
        connection = socket.create_connection((host, int(port)), timeout=_MEET_SECONDS)
        member = _Member(connection, "")
        member.send(_identity(index) | {"token": token})
        member.name = _name(json.loads(member.lines.readline()))
    except (OSError, ValueError) as error:
        raise OSError(f"Process {index} cannot reach process 0 on {host}: {error}.") from error
    connection.settimeout(None)
    return member


def _identity(index):
    return {"index": index, "pid": os.getpid(), "host": socket.gethostname()}


def _name(hello):
    return f"process {hello['index']} (pid {hello['pid']} on {hello['host']})"


def _leave(status):
    sys.stdout.flush()
    os._exit(status)
