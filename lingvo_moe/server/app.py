"""The HTTP interface of the server: an ASGI application."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lingvo_moe.server.batcher import Batcher, QueueFull
from lingvo_moe.server.metrics import Metrics
from lingvo_moe.server.model import Served, TooLong
from lingvo_moe.server.params import ServerParams
from lingvo_moe.server.requests import (
    TOO_LARGE,
    WRONG,
    read_score,
    read_translate,
    refuse,
)

_CLIENT_CLOSED = 499  # nginx's status if the client closed the connection
_TRY_ANOTHER = {"Retry-After": "1"}
# The server waits so long after an answer for another request; and so long in all.
_QUIET_SECONDS, _MOST_QUIET_SECONDS = 0.3, 3.0
_ERRORS = (HTTPException, ClientDisconnect, Exception)  # all are answered as JSON
_PAGE = Path(__file__).parent / "page"
_PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class _Settings(NamedTuple):
    """The common settings of the items of a batch."""

    method: str  # of a Served: "translate", "score" or "explain"
    # to, source_language: languages
    to: str
    source_language: str | None
    options: str = "{}"  # of the search, as JSON


class _Closing:
    """Middleware: while the server drains, each answer tells that the connection ends after it.

    Otherwise a busy client would send its next request on a connection that is being closed.
    """

    def __init__(self, app: ASGIApp, draining: asyncio.Event, answered: Callable[[], None]):
        self._app, self._draining, self._answered = app, draining, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message):
            if self._draining.is_set() and message["type"] == "http.response.start":
                self._answered()
                others = [one for one in message["headers"] if one[0] != b"connection"]
                message = {**message, "headers": [*others, (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_and_close)


class Server:
    """Answers requests for one or more models.

    Attributes:
        names: of the models.
        limits: of requests and batches.
        asgi: the application.
        metrics: its counters.
    """

    def __init__(
        self,
        models: Mapping[str, Served],
        limits: ServerParams | None = None,
    ):
        """Creates the application.

        Args:
            models: by name; the first is the default.
            limits: of requests and batches.
        """
        self._models, self.names = dict(models), tuple(models)
        self.limits, self.metrics = limits or ServerParams(), Metrics()
        self._batchers = {name: self._batcher(name) for name in models}
        options = dict.fromkeys(name for model in models.values() for name in model.options)
        self._read_translate = functools.partial(read_translate, options=tuple(options))
        self._draining, self._open, self._over = asyncio.Event(), 0, asyncio.Event()
        self._last_answer = 0.0
        self._workers: list[asyncio.Task] = []
        self.asgi = Starlette(
            middleware=[Middleware(_Closing, self._draining, self._answered)],
            routes=self._routes(),
            lifespan=self._lifespan,
            exception_handlers=dict.fromkeys(_ERRORS, _as_json),
        )
        self.asgi.router.redirect_slashes = False  # a path with an extra slash at its end is 404

    async def drain(self, seconds: float) -> int:
        """Refuses new requests and those whose body has not arrived; waits for all others.

        Args:
            seconds: limit of the wait; requests that are then open are refused too.

        Returns the number of unanswered requests.
        """
        self._draining.set()
        end = time.monotonic() + seconds
        while self._open and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._over.set()
        return self._open

    async def refuse_the_last(self) -> None:
        """Waits for requests on open connections, after no new connection can be made.

        They are refused; each answer ends its connection.
        """
        self._last_answer = time.monotonic()
        end = self._last_answer + _MOST_QUIET_SECONDS
        while time.monotonic() < min(end, self._last_answer + _QUIET_SECONDS):
            await asyncio.sleep(0.02)

    def _answered(self):
        self._last_answer = time.monotonic()

    def _batcher(self, name):
        observe = functools.partial(self.metrics.observe_batch, name)
        batcher = Batcher(functools.partial(_compute, self._models[name]), self.limits, observe)
        self.metrics.watch_queue(name, lambda: batcher.waiting)
        return batcher

    def _routes(self):
        endpoints = {
            "/v1/translate": (self._translate, "POST"),
            "/v1/score": (self._score, "POST"),
            "/v1/languages": (self._languages, "GET"),
            "/health": (self._health, "GET"),
            "/ready": (self._ready, "GET"),
            "/metrics": (self._metrics, "GET"),
        }
        return [
            *(
                Route(path, self._counted(path, function), methods=[method])
                for path, (function, method) in endpoints.items()
            ),
            *(Route(path, _file(*described)) for path, described in _PAGE_FILES.items()),
        ]

    @contextlib.asynccontextmanager
    async def _lifespan(self, app):
        del app
        self._workers = [asyncio.create_task(each.run()) for each in self._batchers.values()]
        try:
            yield
        finally:
            for worker in self._workers:
                worker.cancel()

    def _counted(self, path, function):
        """The endpoint, with metrics."""

        async def endpoint(request: Request):
            start, status = time.monotonic(), 500
            try:
                response = await function(request)
                status = response.status_code
                return response
            except (HTTPException, ClientDisconnect) as error:
                status = getattr(error, "status_code", _CLIENT_CLOSED)
                raise
            finally:
                self.metrics.requests.labels(path, status).inc()
                self.metrics.seconds.labels(path).observe(time.monotonic() - start)

        return endpoint

    async def _translate(self, request):
        fields = await self._read(request, self._read_translate)
        name, _ = self._model(fields.model)
        with self._answering():
            work = self._measure_and_translate(name, fields)
            sizes, found = await self._until_disconnect(request, work)
        tokens = bool(fields.options.get("tokens"))
        answer = {
            "model": name,
            "translations": [[one.as_json(tokens) for one in best] for best in found],
            "left_out": [size.left_out for size in sizes],
        }
        return JSONResponse(answer)

    async def _measure_and_translate(self, name, fields):
        """The sizes and the translations of the sentences."""
        measure = functools.partial(self._models[name].measure, **fields.options)
        sizes = await asyncio.to_thread(measure, fields.sentences)
        options = json.dumps(fields.options, sort_keys=True)
        settings = _Settings("translate", fields.to, fields.source_language, options)
        tokens = [size.tokens for size in sizes]
        found = await self._batchers[name].submit(fields.sentences, tokens, settings)
        self.metrics.tokens.labels(name).inc(sum(size.pieces for size in sizes))
        return sizes, found

    async def _score(self, request):
        fields = await self._read(request, read_score)
        name, model = self._model(fields.model)
        if fields.experts and not model.explain:
            refuse(WRONG, f"Model {name!r} is an export; experts need a logdir. Leave experts out.")
        with self._answering():
            found = await self._until_disconnect(request, self._measure_and_score(name, fields))
        return JSONResponse({"model": name, "scores": [one.as_json() for one in found]})

    async def _measure_and_score(self, name, fields):
        """The score of each pair."""
        model = self._models[name]
        sizes = await asyncio.to_thread(model.sizes, fields.sources, fields.targets)
        for number, pair in enumerate(sizes, start=1):
            for side, size in zip(("source", "target"), pair, strict=True):
                if size > model.max_pieces:
                    raise TooLong(
                        f"A sentence may have {model.max_pieces} tokens, {side} {number} has "
                        f"{size}; split it."
                    )
        method = "explain" if fields.experts else "score"
        settings = _Settings(method, fields.to, fields.source_language)
        pairs = list(zip(fields.sources, fields.targets, strict=True))
        return await self._batchers[name].submit(pairs, list(map(max, sizes)), settings)

    async def _languages(self, request):
        del request
        models = [
            {
                "name": name,
                "languages": list(model.languages),
                "pairs": list(model.pairs),
                "needs_source_language": model.needs_source_language,
                "n_best": model.n_best,
                "explains": model.explain is not None,
            }
            for name, model in self._models.items()
        ]
        return JSONResponse({"models": models})

    async def _health(self, request):
        del request
        if any(worker.done() for worker in self._workers):
            refuse(500, "A worker thread has ended; restart the server.")
        return JSONResponse({"status": "ok"})

    async def _ready(self, request):
        """Ready if each model translates one character now, in its queue like any sentence."""
        self._refuse_if_draining()
        for name, model in self._models.items():
            source, to = model.direction
            settings = _Settings("translate", to, source)
            await self._until_disconnect(request, self._batchers[name].submit("a", [1], settings))
        return JSONResponse({"status": "ready"})

    async def _metrics(self, request):
        del request
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _model(self, name):
        """The model of a request and its name; by default the first."""
        name = next(iter(self._models)) if name is None else name
        if name not in self._models:
            refuse(404, f"There is no model {name!r:.60}; there are {', '.join(self._models)}.")
        return name, self._models[name]

    def _refuse_if_draining(self):
        if self._draining.is_set():
            refuse(503, "The server is shutting down; use another one.", _TRY_ANOTHER)

    async def _read(self, request, read):
        """The parsed body of a request."""
        self._refuse_if_draining()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            refuse(415, f"Content-Type must be application/json, got {kind!r:.60}.")
        seconds, body = self.limits.timeout, _body(request, self.limits.max_bytes)
        with self._answering():
            async with _first_done(body, self._draining.wait(), seconds=seconds) as (arrived, _):
                self._refuse_if_draining()
                if not arrived.done():
                    refuse(
                        408,
                        f"The body did not arrive within {seconds:g} s; send fewer sentences.",
                    )
                try:
                    return read(arrived.result(), self.limits)
                except ValueError as error:
                    refuse(WRONG, str(error))

    @contextlib.contextmanager
    def _answering(self):
        """Counts an open request, for `drain`."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def _until_disconnect(self, request, work):
        """The result of work; an error if the client disconnects or the time is up."""
        seconds, ends = self.limits.timeout, (_disconnected(request), self._over.wait())
        try:
            async with _first_done(work, *ends, seconds=seconds) as (answered, gone, over):
                if answered.done():
                    return answered.result()
                if gone.done():
                    raise ClientDisconnect
                if over.done():
                    refuse(
                        503,
                        "The server shut down before the answer; ask another server.",
                        _TRY_ANOTHER,
                    )
                refuse(
                    504, f"No answer within {seconds:g} s; send fewer sentences, or retry later."
                )
        except QueueFull as busy:
            refuse(429, str(busy), {"Retry-After": str(busy.seconds)})
        except TooLong as error:
            refuse(TOO_LARGE, str(error))
        except ValueError as error:
            refuse(WRONG, str(error))


@contextlib.asynccontextmanager
async def _first_done(*work: Coroutine, seconds: float) -> AsyncIterator[list[asyncio.Task]]:
    """Runs coroutines until one is done or the time is up; yields the tasks, then cancels them."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


def _compute(model: Served, items: list[Any], settings: _Settings) -> Sequence[Any]:
    """The answers to sentences, or to pairs of a source and a target."""
    pairs = ([pair[side] for pair in items] for side in (0, 1))
    columns = [items] if settings.method == "translate" else pairs
    return getattr(model, settings.method)(
        *columns,
        settings.to,
        source_language=settings.source_language,
        **json.loads(settings.options),
    )


async def _body(request, limit):
    """The body; refused if it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            refuse(TOO_LARGE, f"A body may have {limit:,} bytes; send fewer sentences at a time.")
    return bytes(body)


async def _disconnected(request):
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _file(name: str, media_type: str):
    """An endpoint that serves a file of the page."""
    content = (_PAGE / name).read_bytes()

    async def endpoint(request):
        del request
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return endpoint


async def _as_json(request: Request, error: Exception) -> Response:
    del request
    status, headers = getattr(error, "status_code", 500), getattr(error, "headers", None)
    message: Any = getattr(error, "detail", "Internal error; see the server's log.")
    if isinstance(error, ClientDisconnect):
        status, message = _CLIENT_CLOSED, "The client has disconnected."
    return JSONResponse({"error": message}, status, headers)
