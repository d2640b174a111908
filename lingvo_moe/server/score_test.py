"""POST /v1/score over the model of `testing.served`, and over a logdir and its export."""

import json
import re

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.server.loading import load_all
from lingvo_moe.server.params import ServerParams
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir
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
        (b'{"to": "en", "sources": ["a"]}', 422, "'targets' is missing"),
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


@pytest.mark.slow
def test_a_logdir_and_its_export(tmp_path):
    model_dir = random_logdir(tmp_path / "model", SMALLEST)
    lm.export(lm.load(model_dir.path), tmp_path / "export")
    models = load_all([str(tmp_path / "model"), str(tmp_path / "export")], ServerParams())
    sources, targets = ["kara mi", "", "mi\x85ra \U0001f600"], ["so\u2028ra", "ti", ""]
    expected = lm.load(model_dir.path).score(sources, targets, "en")

    async def test(client):
        for name, model in models.items():
            pairs = {"model": name, "sources": sources, "targets": targets}
            found = (await ask(client, **pairs)).json()["scores"]
            for one, score in zip(found, expected, strict=True):
                assert [token["text"] for token in one["tokens"]] == list(score.tokens)
                log_probs = [token["log_prob"] for token in one["tokens"]]
                np.testing.assert_allclose(log_probs, score.token_log_probs, atol=1e-4)
                np.testing.assert_allclose(one["log_prob"], score.log_prob, atol=1e-3)
            nothing = {"model": name, "sources": [], "targets": []}
            assert (await ask(client, **nothing)).json()["scores"] == []
            for asked in (pairs, nothing):
                answer = await ask(client, **asked, to="xx")
                assert answer.status_code == 422
                assert "'xx'" in answer.json()["error"]
            answer = await ask(client, **pairs, experts=True)
            if not model.explains:
                assert answer.status_code == 422
                continue
            for one, score in zip(answer.json()["scores"], found, strict=True):
                np.testing.assert_allclose(one["log_prob"], score["log_prob"], atol=1e-3)
                assert [set(token["experts"]) for token in one["tokens"]] == [
                    {"decoder/layer_00"}
                ] * len(score["tokens"])

    run(test, models=models)
