"""A server in this process, over a model that translates "a" into "A in en"; no TensorFlow."""

import asyncio
import math
import threading
from typing import Any

import httpx

from lingvo_moe.inference.scorer import Score
from lingvo_moe.inference.translator import Translation
from lingvo_moe.jobs.model import Explanation, RoutedToken
from lingvo_moe.server.app import Server
from lingvo_moe.server.model import Size, TooLong
from lingvo_moe.server.params import ServerParams


class Model:
    """Two translations of a sentence; a piece a character, of which it reads 8."""

    languages, pairs, needs_source_language = ["de", "en"], ("fr-en", "fr-de"), False
    n_best, max_pieces, options = 2, 8, ("n_best", "beam_size", "length_offset")
    direction = "fr", "en"
    explain: Any = None

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def measure(self, sentences, **options):
        if not 1 <= options.get("n_best", 1) <= 2:
            raise ValueError(f"n_best must be 1 to 2, got {options['n_best']}.")
        longest = options.get("length_offset", 10)
        if longest > 100:
            raise TooLong(f"{longest} tokens, but at most 100 are allowed")
        return [Size(min(len(s), 8), max(0, len(s) - 8), longest) for s in sentences]

    def translate(self, sentences, to, *, source_language, n_best=1, **options):
        self.batches.append(sentences)
        assert self.gate.wait(60)
        if to not in self.languages:
            raise ValueError(f"This model does not translate into {to!r}; it knows de, en.")
        if "crash" in sentences:
            raise RuntimeError("a secret")
        best = [
            [Translation(f"{s.upper()} in {to}", -0.5), Translation("", -math.inf)]
            for s in sentences
        ]
        return [two[:n_best] for two in best]

    def sizes(self, sources, targets):
        return [tuple(map(len, pair)) for pair in zip(sources, targets, strict=True)]

    def score(self, sources, targets, to, *, source_language):
        self.batches.append(list(zip(sources, targets, strict=True)))
        assert self.gate.wait(60)
        return [Score(-len(text), (text, "</s>"), (-len(text), 0.0)) for text in targets]


class Explaining(Model):
    """The same model with `explain`."""

    def explain(self, sources, targets, to, *, source_language):
        return [
            Explanation(
                [RoutedToken(s, None, {"encoder/layer_01": [(3, 0.5)]})],
                [RoutedToken(t, -1.5, {}), RoutedToken("</s>", -1.0, {})],
            )
            for s, t in zip(sources, targets, strict=True)
        ]


class Client:
    """A client of a server in this process."""

    def __init__(self, server, model):
        self.server, self.model = server, model
        transport = httpx.ASGITransport(server.asgi, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def translate(self, *sentences, **fields):
        question = {"sentences": sentences, "to": "en"} | fields
        return await self.http.post("/v1/translate", json=question)

    async def post(self, content, kind="application/json", path="/v1/translate"):
        return await self.http.post(path, content=content, headers={"Content-Type": kind})

    async def waiting(self, count):
        """Waits until so many sentences are in the queue."""
        line = f'lingvo_moe_waiting_sentences{{model="m"}} {count:.1f}'
        while line not in (await self.http.get("/metrics")).text:
            await asyncio.sleep(0.001)


def run(test, model=None, models=None, **params):
    """Awaits test(client) beside a server of one model "m", or of those given."""
    model = model or Model()

    async def main():
        server = Server(models or {"m": model}, ServerParams(**{"max_wait_ms": 0.0, **params}))
        async with server.asgi.router.lifespan_context(server.asgi), asyncio.timeout(600):
            client = Client(server, model)
            try:
                return await test(client)
            finally:
                model.gate.set()

    return asyncio.run(main())


def answer_to(content, kind="application/json", path="/v1/translate", **settings):
    """Status and error of one request."""

    async def test(client):
        response = await client.post(content, kind, path)
        error = response.json()["error"]
        assert "\n" not in error
        return response.status_code, error

    return run(test, **settings)
