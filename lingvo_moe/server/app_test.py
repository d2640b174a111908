"""The HTTP interface over the model of `testing.served`; no socket, no TensorFlow."""

import asyncio
import json
import re

import pytest

from lingvo_moe.testing.served import Explaining, Model, answer_to, run


async def begun(client):
    """A request that the model is translating, until its gate is opened."""
    client.model.gate.clear()
    first = asyncio.create_task(client.translate("a"))
    while not client.model.batches:
        await asyncio.sleep(0.001)
    return first


class TestTranslate:
    def test_each_sentence_and_its_n_best(self):
        async def test(client):
            one = await client.translate("a", "b\u2028\x85c", "")
            assert one.status_code == 200
            assert one.json() == {
                "model": "m",
                "translations": [
                    [{"text": "A in en", "score": -0.5}],
                    [{"text": "B\u2028\x85C in en", "score": -0.5}],
                    [{"text": " in en", "score": -0.5}],
                ],
                "left_out": [0, 0, 0],
            }
            two = await client.translate("a", to="de", n_best=2, model="m", source_language="fr")
            assert two.json()["translations"] == [
                [{"text": "A in de", "score": -0.5}, {"text": "", "score": None}]
            ]

        run(test)

    def test_only_those_of_equal_options_share_a_batch(self):
        async def test(client):
            first = await begun(client)
            asked = ({"n_best": 2, "beam_size": 8}, {"beam_size": 8, "n_best": 2}, {"n_best": None})
            others = [asyncio.create_task(client.translate("b", **fields)) for fields in asked]
            await client.waiting(3)
            client.model.gate.set()
            assert [(await task).status_code for task in (first, *others)] == [200] * 4
            assert client.model.batches == [["a"], ["b", "b"], ["b"]]

        run(test)

    def test_options_for_long_translations_make_smaller_batches(self):
        async def ask(client, **options):
            client.model.batches.clear()
            first = await begun(client)
            second = asyncio.create_task(client.translate("a", "b", "c", "d", **options))
            await client.waiting(4)
            client.model.gate.set()
            assert [(await task).status_code for task in (first, second)] == [200, 200]
            return client.model.batches[1:]

        async def test(client):
            assert await ask(client) == [["a", "b", "c", "d"]]
            # Each may have 100 tokens, which count as 50.
            assert await ask(client, length_offset=100) == [["a", "b"], ["c", "d"]]

        run(test, max_batch_tokens=100)

    def test_what_is_left_out_is_said(self):
        async def test(client):
            assert (await client.translate("a" * 11, "b")).json()["left_out"] == [3, 0]

        run(test)

    def test_several_models(self):
        async def test(client):
            listed = (await client.http.get("/v1/languages")).json()["models"]
            assert [model["name"] for model in listed] == ["first", "second"]
            assert listed[0] == {
                "name": "first",
                "languages": ["de", "en"],
                "pairs": ["fr-en", "fr-de"],
                "needs_source_language": False,
                "n_best": 2,
                "explains": False,
            }
            assert (await client.translate("a")).json()["model"] == "first"
            assert (await client.translate("b", model="second")).json()["model"] == "second"
            assert (first.batches, second.batches) == ([["a"]], [["b"]])
            missing = await client.translate("a", model="third")
            assert missing.status_code == 404
            assert missing.json()["error"] == "There is no model 'third'; there are first, second."

        first, second = Model(), Explaining()
        run(test, models={"first": first, "second": second})


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "status", "message"),
        [
            (b"", 400, "not JSON"),
            (b"{", 400, "not JSON"),
            (b"\xff{}", 400, "UTF-8"),
            (b"[" * 100_000, 400, "recursion"),
            (b'{"n_best": ' + b"9" * 5000 + b"}", 400, "digits"),
            (b"[]", 422, r"must be a JSON object, got \[\]"),
            (b'{"sentence": ["a"], "to": "en"}', 422, "'sentence'. There are sentences"),
            (b'{"sentences": ["a"]}', 422, "'to' must be str"),
            (b'{"sentences": "a", "to": "en"}', 422, r"'sentences' must be list\[str\]"),
            (b'{"sentences": ["a", 1], "to": "en"}', 422, r"'sentences' must be list\[str\]"),
            (b'{"sentences": null, "to": "en"}', 422, "must be .*, got None"),
            (b'{"sentences": [], "to": 7}', 422, "'to' must be str, got 7"),
            (b'{"sentences": [], "to": "en", "n_best": 0}', 422, "n_best must be 1 to 2, got 0"),
            (b'{"sentences": [], "to": "en", "n_best": 3}', 422, "n_best must be 1 to 2, got 3"),
            (b'{"sentences": ["a", "\\u0000"], "to": "en"}', 422, "NUL character in sentence 2"),
            (
                b'{"sentences": ["a\\ud800"], "to": "en"}',
                422,
                "sentence 1 is not valid Unicode: character 2",
            ),
            (b'{"sentences": ["a"], "to": "xx"}', 422, "not translate into 'xx'; it knows de, en"),
            (b'{"sentences": ["a"], "to": "en", "model": "n"}', 404, "no model 'n'; there are m"),
        ],
    )
    def test_malformed(self, content, status, message):
        got, error = answer_to(content)
        assert got == status
        assert re.search(message, error), error
        assert len(error) < 300

    @pytest.mark.parametrize(
        ("fields", "limits", "message"),
        [
            ({"sentences": ["a" * 200]}, {"max_bytes": 100}, "A body may have 100 bytes"),
            ({"sentences": ["a"] * 3}, {"max_sentences": 2}, "2 sentences, but this one has 3"),
            ({"sentences": ["a", "bcd"]}, {"max_characters": 2}, "sentence 2 has 3; split it"),
            ({"sentences": ["a"], "length_offset": 101}, {}, "at most 100 are allowed"),
        ],
    )
    def test_too_large(self, fields, limits, message):
        content = json.dumps({"to": "en"} | fields).encode()
        status, error = answer_to(content, **limits)
        assert status == 413
        assert message in error

    def test_too_large_though_it_does_not_say_so(self):
        async def endless():
            while True:
                yield b" " * (1 << 20)

        status, error = answer_to(endless(), max_bytes=1000)
        assert status == 413
        assert "1,000 bytes" in error

    def test_a_body_that_does_not_arrive(self):
        async def test(client):
            return await _raw(client.server, never_more=True)

        assert run(test, timeout=0.05) == 408

    def test_a_full_queue(self):
        async def test(client):
            first = await begun(client)
            second = asyncio.create_task(client.translate("b", "c"))
            await client.waiting(2)
            refused = await client.translate("d", "e")
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"].startswith("2 sentences are waiting; try again in")
            client.model.gate.set()
            assert [(await task).status_code for task in (first, second)] == [200, 200]

        run(test, max_sentences=3, max_queue=3)

    def test_a_crash_is_that_request_s_alone_and_keeps_its_secrets(self):
        async def test(client):
            crash = await client.translate("crash")
            assert crash.status_code == 500
            assert crash.json() == {"error": "Internal error; see the server's log."}
            assert (await client.translate("a")).status_code == 200
            assert (await client.http.get("/health")).status_code == 200

        run(test)

    def test_other_paths_and_methods(self):
        async def test(client):
            for path in ("/v1/nothing", "/v1/languages/"):
                response = await client.http.get(path)
                assert response.status_code == 404
                assert response.json() == {"error": "Not Found"}
            assert (await client.http.get("/v1/translate")).status_code == 405

        run(test)


async def _raw(server, leave=None, never_more=False):
    """Speaks ASGI: sends a question and is gone when `leave` is set. Returns the status."""
    body = b'{"sentences": ["gone"], "to": "en"}'
    sent, messages = [], [{"type": "http.request", "body": body, "more_body": never_more}]

    async def receive():
        if messages:
            return messages.pop()
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/translate",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await server.asgi(scope, receive, send)
    return sent[0]["status"]


def test_a_client_that_goes_leaves_the_queue():
    async def test(client):
        first = await begun(client)
        leave = asyncio.Event()
        gone = asyncio.create_task(_raw(client.server, leave))
        await client.waiting(1)
        leave.set()
        assert await gone == 499
        await client.waiting(0)
        client.model.gate.set()
        assert (await first).status_code == 200
        assert (await client.translate("b")).status_code == 200
        assert [texts[0] for texts in client.model.batches] == ["a", "b"]

    run(test)


def test_draining_finishes_what_is_at_hand():
    async def test(client):
        first = await begun(client)
        second = asyncio.create_task(client.translate("b"))
        await client.waiting(1)
        draining = asyncio.create_task(client.server.drain(60))
        await asyncio.sleep(0)
        for refused in (await client.http.get("/ready"), await client.translate("c")):
            assert refused.status_code == 503
            assert refused.headers["Retry-After"] == "1"
        assert (await client.http.get("/health")).status_code == 200
        client.model.gate.set()
        assert await draining == 0
        assert [(await task).status_code for task in (first, second)] == [200, 200]

    run(test)


def test_draining_does_not_wait_for_ever():
    async def test(client):
        stuck = await begun(client)
        assert await client.server.drain(0.05) == 1
        refused = await stuck  # though the model still computes
        assert refused.status_code == 503
        assert refused.json()["error"].startswith("The server shut down before the answer")
        assert refused.headers["Retry-After"] == "1"

    run(test)


def test_ready_if_every_model_translates():
    async def test(client):
        assert (await client.http.get("/ready")).status_code == 200
        assert (first.batches, second.batches) == ([["a"]], [["a"]])
        second.gate.clear()  # its thread hangs
        assert (await client.http.get("/ready")).status_code == 504
        first.languages = []  # its translation fails
        assert (await client.http.get("/ready")).status_code == 422

    first, second = Model(), Model()
    run(test, models={"first": first, "second": second}, timeout=0.2)


def test_metrics():
    async def test(client):
        await client.translate("abc", "de")
        await client.translate("a", to="xx")
        text = (await client.http.get("/metrics")).text
        for line in (
            'lingvo_moe_requests_total{path="/v1/translate",status="200"} 1.0',
            'lingvo_moe_requests_total{path="/v1/translate",status="422"} 1.0',
            'lingvo_moe_source_tokens_total{model="m"} 5.0',
            'lingvo_moe_batch_sentences_sum{model="m"} 2.0',
            'lingvo_moe_waiting_sentences{model="m"} 0.0',
        ):
            assert line in text.splitlines()

    run(test)


def test_the_page_needs_nothing_from_elsewhere():
    async def test(client):
        page = await client.http.get("/")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert set(files) == {"data:,", "page.css", "page.js"}
        for name in ("page.css", "page.js"):
            text = (await client.http.get(f"/{name}")).text
            assert not re.search(r"https?:|//cdn|innerHTML|insertAdjacentHTML|eval\(", text)

    run(test)
