"""Checks the flags of all processes: each reports to process 0 before JAX connects them.

JAX finds wrong flags late: it waits for minutes, or aborts with a stack trace.
"""

import json
import os
import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from lingvo_moe.runtimes.together import HELLO_SECONDS, listen

_RETRY_SECONDS = 0.2
_LINE_BYTES = 1000
_SHOWN = 8  # missing processes in an error
_CURE = (
    "Start all processes with the same --coordinator and --process_count, each with its own "
    "--process_index."
)


class _Member(NamedTuple):
    """A process that has reported."""

    report: dict[str, Any]
    connection: socket.socket


def call_roll(coordinator: str, index: int, count: int, seconds: float) -> None:
    """Waits until all processes have reported to process 0, which then frees its port.

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
    mine = {"index": index, "count": count, "pid": os.getpid(), "host": socket.gethostname()}
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
    members: list[_Member] = []
    error = ""
    with _listen(port, mine["count"]) as server:
        try:
            while len(members := _alive(members)) < mine["count"] - 1 and not error:
                try:
                    connection = _accept(server, mine["count"], members, deadline)
                except TimeoutError as timeout:
                    error = late(str(timeout))
                    break
                report = _read(connection)
                if report is None or not report.keys() >= mine.keys():
                    connection.close()  # not one of our processes
                    continue
                members = _alive(members)
                error = _conflict(report, [mine, *(member.report for member in members)])
                members.append(_Member(report, connection))
            for member in members:
                _tell(member.connection, error)
        finally:
            for member in members:
                member.connection.close()
    return error


def _alive(members: list[_Member]) -> list[_Member]:
    """Those that have not ended; a process that has ended may be started again."""
    return [member for member in members if not _ended(member.connection)]


def _listen(port, count):
    try:
        return listen(port, count)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(
            f"Port {port} of this host cannot be used ({reason}); start all processes with another "
            f"port in --coordinator."
        ) from error


def _accept(server, count, members, deadline):
    server.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        return server.accept()[0]
    except TimeoutError as error:
        here = {member.report["index"] for member in members}
        missing = [index for index in range(1, count) if index not in here]
        names = ", ".join(map(str, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
        raise TimeoutError(f"missing: {names}") from error


def _conflict(report: dict[str, Any], others: Iterable[dict[str, Any]]) -> str:
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


def _ended(connection) -> bool:
    """Whether the other end has closed its connection."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _read(connection) -> dict[str, Any] | None:
    """A message of one line; None if it is none."""
    connection.settimeout(HELLO_SECONDS)
    try:
        with connection.makefile("r", encoding="utf-8") as lines:
            message = json.loads(lines.readline(_LINE_BYTES))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def _tell(connection, error):
    """Sends the outcome, and waits until the other end closes, so that the port becomes free."""
    connection.settimeout(HELLO_SECONDS)
    try:
        _send(connection, {"error": error})
        connection.recv(1)
    except OSError:
        pass  # it has ended


def _send(connection, message):
    connection.sendall((json.dumps(message) + "\n").encode())


def _report(address, mine, deadline, late) -> str:
    """Another process: reports to process 0, and returns the outcome, an error or ""."""
    try:
        connection = _connect(address, deadline)
    except TimeoutError as error:
        return late(f"process 0: {error}")
    with connection, connection.makefile("r", encoding="utf-8") as lines:
        connection.settimeout(max(0.01, deadline + HELLO_SECONDS - time.monotonic()))
        try:
            _send(connection, mine)
            return json.loads(lines.readline(_LINE_BYTES))["error"]
        except (OSError, ValueError, LookupError, TypeError):
            return (
                f"{address[0]}:{address[1]} gives process {mine['index']} no answer. Process 0 has "
                f"ended, or all processes have reported already, or another program uses the port. "
                f"{_CURE}"
            )


def _connect(address, deadline):
    """A connection to process 0, which may not have started yet."""
    while True:
        try:
            return socket.create_connection(address, max(0.01, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise TimeoutError(error.strerror or error) from error
        time.sleep(_RETRY_SECONDS)
