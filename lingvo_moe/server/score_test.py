"""POST /v1/score over the model of `testing.served`, and over a logdir and its export."""

import json
import re

import pytest

from lingvo_moe.testing.served import Explaining, answer_to, run

PAIRS = {"sources": ["a", "", "c"], "targets": ["xyz", "v\u2028w", ""], "to": "en"}


async def ask(client, **fields):
    return await client.http.post("/v1/score", json=PAIRS | fields)


def assert_refused(status, message, **settings):
    """Asserts that /v1/score refuses `content`."""
    got, error = answer_to(path="/v1/score", **settings)
    assert got == status
    assert re.search(message, error), error
    assert len(error) < 300


def test_each_pair():
    async def test(client):
        answer = await ask(client)
        assert answer.status_code == 200
        tokens = [
            [{"text": text, "log_prob": -length}, {"text": "</s>", "log_prob": 0.0}]
            for text, length in (("xyz", 3), ("v\u2028w", 3), ("", 0))
        ]
        scores = [
            {"log_prob": log_prob, "tokens": each}
            for log_prob, each in zip((-3, -3, 0), tokens, strict=True)
        ]
        assert answer.json() == {"model": "m", "scores": scores}
        nothing = await ask(client, sources=[], targets=[])
        assert nothing.json() == {"model": "m", "scores": []}

    run(test)


def test_experts():
    async def test(client):
        answer = await ask(client, sources=["a"], targets=["b"], experts=True)
        assert answer.json()["scores"] == [
            {
                "log_prob": -2.5,
                "tokens": [
                    {"text": "b", "log_prob": -1.5, "experts": {}},
                    {"text": "</s>", "log_prob": -1.0, "experts": {}},
                ],
                "source": [{"text": "a", "experts": {"encoder/layer_01": [[3, 0.5]]}}],
            }
        ]
        assert "source" not in (await ask(client, experts=False)).json()["scores"][0]

    run(test, Explaining())


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b'{"to": "en", "sources": ["a"]}', 422, "'targets' must be"),
        (b'{"to": "en", "sources": [1], "targets": ["b"]}', 422, "'sources' must be"),
        (b'{"to": "en", "n_best": 2}', 422, "Unknown field 'n_best'"),
        (b'{"to": "en", "sources": ["a", "b"], "targets": ["c"]}', 422, "2 sources and 1 targets"),
        (b'{"to": "en", "sources": ["a"], "targets": ["b"], "experts": true}', 422, "a logdir"),
        (b'{"to": "en", "sources": ["a"], "targets": ["\\u0000"]}', 422, "NUL .* target 1"),
    ],
)
def test_malformed(content, status, message):
    assert_refused(status, message, content=content)


@pytest.mark.parametrize(
    ("fields", "limits", "message"),
    [
        ({"sources": ["a", "b", "c"]}, {"max_characters": 2}, "target 1 has 3; split it"),
        ({"sources": ["a", "b", "a" * 9]}, {}, "may have 8 tokens, source 3 has 9; split it"),
        ({"targets": ["a", "b" * 9, "c"]}, {}, "may have 8 tokens, target 2 has 9; split it"),
    ],
)
def test_too_large(fields, limits, message):
    content = json.dumps(PAIRS | fields).encode()
    assert_refused(413, message, content=content, **limits)
