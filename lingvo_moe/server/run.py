"""Runs the server as a process: port, signals, shutdown."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn, cast

import uvicorn

from lingvo_moe.server.app import Server

_BACKLOG = 128  # connections that the kernel completes before the server accepts them
_IDLE_SECONDS = 75  # of a connection; longer than in proxies, so that they close it first
_SECONDS_TO_SEND = 5  # for clients to read their last answers


class _Uvicorn(uvicorn.Server):
    """Uvicorn without signal handlers, which would refuse connections before `drain` ends."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]):
        """Calls `started` once clients can connect."""
        super().__init__(config)
        self._tell = started

    def capture_signals(self):
        return contextlib.nullcontext()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self._tell()

    async def close(self, listener: socket.socket) -> None:
        """Refuses new connections, and accepts all that clients have already made.

        The kernel resets those that are not accepted when the listener is closed.
        """
        loop, kind = asyncio.get_running_loop(), cast(Any, self.config.http_protocol_class)
        made = []
        with contextlib.suppress(BlockingIOError):
            while True:
                made.append(listener.accept()[0])
        for listening in self.servers:
            listening.close()
        for each in made:
            await loop.connect_accepted_socket(
                lambda: kind(
                    config=self.config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                ),
                each,
            )


def bind(host: str, port: int) -> socket.socket:
    """Binds the address of a server before its models are loaded; it does not listen yet.

    Args:
        host: such as "127.0.0.1", "0.0.0.0" or "::1".
        port: 0 for any that is free.

    Raises OSError: the address cannot be used.
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
    """The URL of the server."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(
    server: Server, listener: socket.socket, drain: float, report: Callable[[str], None]
) -> NoReturn:
    """Serves until SIGTERM or SIGINT; then answers the open requests, refuses new ones, and ends.

    The process ends with status 0, or 1 if requests were left unanswered. It does not wait for its
    threads, because nothing can stop a batch that a model is computing. A second signal ends it at
    once, with status 128 + its number.

    Args:
        server: the application.
        listener: from `bind`.
        drain: seconds to answer the open requests.
        report: takes a line when clients can connect, when a signal arrives, and at the end if
            requests were left unanswered.

    Raises OSError: another process has begun to listen at the address since `bind`.
    """
    listener.listen(_BACKLOG)
    # asyncio.run would wait for threads.
    unanswered = asyncio.new_event_loop().run_until_complete(
        _serve(server, listener, drain, report)
    )
    if unanswered:
        with contextlib.suppress(OSError):
            report(f"error: {unanswered} requests were left unanswered; see --drain.")
    os._exit(bool(unanswered))


async def _serve(server, listener, drain, report):
    config = uvicorn.Config(
        server.asgi,
        backlog=_BACKLOG,
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

    def on_signal(number):
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # the reader may have closed it
            report(f"{name}: answering open requests, then ending. A second signal ends at once.")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    serving, stopped = asyncio.create_task(web.serve([listener])), asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    unanswered = await server.drain(drain)
    await web.close(listener)
    await server.refuse_the_last()
    web.should_exit = True
    await serving
    return unanswered
