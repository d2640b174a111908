"""A server as a process: its port, its signals, its end."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable

import uvicorn

from lingvo_moe.server.app import Server

_IDLE_SECONDS = 75  # of a connection; longer than proxies keep theirs, lest they use a closed one
_SECONDS_TO_SEND = 5  # that clients have to read their last answers


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves signals to us: it would refuse connections before we have drained."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]):
        """Calls `started` once clients can connect."""
        super().__init__(config)
        self._tell = started

    def capture_signals(self):
        return contextlib.nullcontext()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self._tell()


def bind(host: str, port: int) -> socket.socket:
    """The address of a server, taken before its models are loaded; nobody can connect yet.

    Args:
        host: such as "127.0.0.1", "0.0.0.0" or "::1".
        port: 0 for any that is free.

    Raises:
        OSError: it is not to be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise OSError(
            f"Cannot listen on {host}, port {port} ({error.strerror}); give another --host or "
            f"--port."
        ) from error
    return listener


def url(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(
    server: Server, listener: socket.socket, drain: float, report: Callable[[str], None]
) -> int:
    """Serves until SIGTERM or SIGINT; then finishes what is at hand, and takes nothing new.

    A second signal ends the process at once, with status 128 + its number.

    Args:
        server: what to serve.
        listener: of `bind`.
        drain: seconds that requests at hand have to be answered.
        report: takes a line when clients can connect, and when a signal has come.

    Returns:
        How many requests were left unanswered.
    """
    return asyncio.run(_serve(server, listener, drain, report))


async def _serve(server, listener, drain, report):
    config = uvicorn.Config(
        server.asgi,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_SECONDS_TO_SEND,
    )
    stop = asyncio.Event()
    names = ", ".join(server.names)
    web = _Uvicorn(config, lambda: report(f"Serving {names} at {url(listener)}"))

    def hear(number):
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # nobody may be reading any more
            report(f"{name}: answers the requests at hand, and ends. A second signal ends at once.")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear, number)
    serving, stopped = asyncio.create_task(web.serve([listener])), asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    unanswered = await server.drain(drain)
    web.should_exit = True
    await serving
    return unanswered
