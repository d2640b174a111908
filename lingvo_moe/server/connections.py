"""Limits of connections: uvicorn has none for those that send no complete request."""

import asyncio
import resource
import sys

from uvicorn.protocols.http.auto import AutoHTTPProtocol

BACKLOG = 128  # connections that the kernel completes before the server accepts them
_RESERVE = 2 * BACKLOG  # descriptors for other files
_FEWEST = 16


def most_connections() -> int:
    """How many connections may be open, by the limit of file descriptors (`ulimit -n`).

    Without descriptors asyncio cannot accept connections, and logs that many times a second.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(_FEWEST, descriptors - _RESERVE)


def protocol(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol for HTTP, with two limits.

    It closes connections beyond `most_connections`, and those whose request has no complete head in
    time.

    Args:
        seconds: from the first byte of a request, or from the start of the connection, to the end
            of the head.
    """
    most = most_connections()

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """See `protocol`."""

        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport):
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            self._expect_head()

        def data_received(self, data):
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._expect_head()
            else:
                self._stop()

        def connection_lost(self, exc):
            self._stop()
            super().connection_lost(exc)

        def _expect_head(self):
            if self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _stop(self):
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Limited
